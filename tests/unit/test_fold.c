/* One node's part in an etcd-v3 rendezvous: what it asks of etcd, what it writes under which conditions, what it
 * tells. */
#include "failmalloc.h"
#include "fold_scene.h"

#include <jansson.h>
#include <stdio.h>

/* ---- Joining ---- */

static void a_join_reads_and_takes_a_lease_at_once(void **state)
{
    struct scene *s = *state;

    assert_string_equal(asked(s, MU_FOLD_ON_JOIN), "load job, take lease");
    assert_string_equal(loaded(s, MU_FOLD_JOB), "progress");
    assert_string_equal(leased(s, 11), "write [ job/folder absent] record(join 0) job/folder else record");
}

static void who_finds_a_leader_writes_its_record_only(void **state)
{
    struct scene *s = *state;

    (void)asked(s, MU_FOLD_ON_JOIN);
    add_leader(s, OTHER, 5, 22);
    (void)loaded(s, MU_FOLD_JOB);
    assert_string_equal(leased(s, 11), "write record(join 0)");
    assert_string_equal(wrote(s, true, 6), "");
    assert_false(mu_fold_is_leader(s->fold));
}

static void a_document_that_has_us_is_joined(void **state)
{
    struct scene *s = *state;

    be_member(s);
    assert_int_equal(mu_fold_phase(s->fold), MU_FOLD_MEMBER);
    assert_int_equal(mu_fold_request_until_ms(s->fold, 5), 5 + LEASE_MS); /* to notice a lost etcd in time */
    assert_true(mu_fold_rank(s->fold) == 1 && mu_fold_world(s->fold)->nodes == 2);
    assert_true(mu_fold_world(s->fold)->round == 7);
}

static void a_document_without_us_is_not(void **state)
{
    struct scene *s = *state;

    join_beside_a_leader(s);
    add_doc(s, 7, 20, them, 2);
    assert_string_equal(changed(s, MU_FOLD_JOB), "progress, read seat");
    assert_string_equal(seated(s), "");
    assert_int_equal(mu_fold_phase(s->fold), MU_FOLD_JOINING);
    assert_null(mu_fold_world(s->fold));
}

/* A world is entered once. */
static void a_world_that_was_left_is_not_entered_again(void **state)
{
    struct scene *s = *state;

    be_member(s);
    assert_string_equal(asked(s, MU_FOLD_ON_JOIN), "progress, write record(join 7)");
    (void)wrote(s, true, 21);
    add_doc(s, 7, 22, us, 2); /* put back by somebody */
    assert_string_equal(changed(s, MU_FOLD_JOB), "");
    add_doc(s, 8, 23, us, 2);
    assert_string_equal(changed(s, MU_FOLD_JOB), "progress, read seat");
    assert_string_equal(seated(s), "joined");
}

static void a_world_that_has_us_as_gone_is_not_entered(void **state)
{
    static const uint32_t gone[] = { 1 };
    struct scene *s = *state;

    join_beside_a_leader(s);
    add_doc(s, 7, 20, us, 2);
    add_news(s, 7, 20, gone, 1, 0);
    assert_string_equal(changed(s, MU_FOLD_JOB), "progress, read seat");
    assert_string_equal(seated(s), "write record(join 7)");
}

static void a_closed_job_is_not_joined(void **state)
{
    struct scene *s = *state;

    (void)asked(s, MU_FOLD_ON_JOIN);
    add_closed(s);
    assert_string_equal(loaded(s, MU_FOLD_JOB), "failed ERDZV_CLOSED, drop lease, closed");
    assert_int_equal(mu_fold_phase(s->fold), MU_FOLD_IDLE);
}

/* The store was started anew, and knew nothing of it: there were other rounds before the job was closed again. */
static void that_the_job_is_closed_is_told_once_a_round(void **state)
{
    struct scene *s = *state;

    be_member(s);
    add_closed(s);
    assert_string_equal(changed(s, MU_FOLD_JOB), "closed");
    (void)deleted(s, MU_FOLD_JOB, "job/closed", 29);
    (void)wrote(s, false, 0);
    add_leader(s, OTHER, 5, 22);
    add_doc(s, 8, 30, them, 2);
    assert_non_null(strstr(loaded(s, MU_FOLD_JOB), "removed"));
    (void)asked(s, MU_FOLD_ON_JOIN);
    (void)leased(s, 12);
    (void)wrote(s, true, 31);
    add_doc(s, 9, 32, us, 2);
    (void)changed(s, MU_FOLD_JOB);
    assert_string_equal(seated(s), "joined, write [ job/closed absent] job/closed"); /* it stays closed */
    (void)wrote(s, true, 33);
    add_closed(s);
    assert_string_equal(changed(s, MU_FOLD_JOB), "closed");
    assert_string_equal(passes(s, 0), "");
}

static void a_spare_of_a_closed_job_ends_well(void **state)
{
    static const uint64_t full[] = { 2, 3, 4 };
    struct scene *s = *state;

    join_beside_a_leader(s);
    add_doc(s, 7, 20, full, 3);
    (void)changed(s, MU_FOLD_JOB);
    (void)seated(s);
    assert_true(mu_fold_progress(s->fold).spare);
    assert_string_equal(passes(s, 3600000), ""); /* a spare waits for as long as it takes */
    add_closed(s);
    assert_string_equal(changed(s, MU_FOLD_JOB), "failed ERDZV_GRACEFUL_EXIT, drop lease, closed");
}

/* Its last round was full, and is still to be seen. Whoever starts the job again has to hear that nothing was done. */
static void who_comes_to_a_job_that_is_over_was_no_spare(void **state)
{
    static const uint64_t full[] = { 2, 3, 4 };
    struct scene *s = *state;

    (void)asked(s, MU_FOLD_ON_JOIN);
    add_doc(s, 7, 20, full, 3);
    add_closed(s);
    assert_string_equal(loaded(s, MU_FOLD_JOB), "failed ERDZV_CLOSED, drop lease, closed");
}

static void a_wait_tells_how_many_are_in_the_round_that_runs(void **state)
{
    static const uint64_t full[] = { 2, 3, 4 };
    struct scene *s = *state;

    join_beside_a_leader(s);
    add_doc(s, 7, 20, full, 3);
    add_full_news(s, 20, &(struct mu_fold_news){ .world = 7, .spares = 1, .last_call_ms = -1 });
    (void)changed(s, MU_FOLD_JOB);
    (void)seated(s);
    assert_true(mu_fold_progress(s->fold).spare);
    assert_int_equal(mu_fold_progress(s->fold).joined, 3);
}

static void too_few_nodes_are_a_timeout(void **state)
{
    struct scene *s = *state;

    join_beside_a_leader(s);
    assert_true(mu_fold_deadline_ms(s->fold) <= 1000 + 600000);
    assert_string_equal(passes(s, 600000), "failed ERDZV_TIMEOUT, drop lease");
}

static void a_wait_that_lasts_looks_around_and_a_timeout_names_who_came(void **state)
{
    struct scene *s = *state;

    join_beside_a_leader(s);
    assert_string_equal(passes(s, MU_WAITERS_FIRST_MS - 1), "");
    assert_string_equal(passes(s, 1), "look around, write [ record mod 6] else record");
    assert_string_equal(wrote(s, true, 6), "");
    add_record(s, OTHER, 4, 1, true, 0);
    assert_string_equal(tell_it(s, MU_FOLD_ON_CROWD, MU_FOLD_NODES), "progress");
    assert_non_null(strstr(passes(s, MU_WAITERS_FIRST_MS), "look around"));
    (void)wrote(s, true, 6);
    add_record(s, OTHER, 4, 1, true, 0);
    assert_string_equal(tell_it(s, MU_FOLD_ON_CROWD, MU_FOLD_NODES), ""); /* nothing is new */
    assert_int_equal(mu_fold_crowd(s->fold)->count, 1);
    add_full_news(s, 20, &(struct mu_fold_news){ .joined = 1, .last_call_ms = -1 });
    assert_string_equal(changed(s, MU_FOLD_JOB), "progress");
    assert_string_equal(passes(s, 600000), "failed ERDZV_TIMEOUT, drop lease");
    assert_string_equal(s->why.text, "timed out after 600 s: 1 of 2 to 3 nodes joined (host)");
}

static void a_timeout_names_who_has_other_limits_or_waits_for_another_job(void **state)
{
    struct scene *s = *state;
    struct mu_fold_record other = { .name = "node7", .nodes_min = 2, .nodes_max = 2, .joining = true, .size = 1 };

    join_beside_a_leader(s);
    (void)passes(s, MU_WAITERS_FIRST_MS);
    (void)wrote(s, true, 6);
    add_full_record(s, OTHER, 4, (struct mu_fold_record){ .nodes_min = 8, .nodes_max = 8, .joining = true });
    assert_int_equal(mu_fold_record_write(&other, add(s, "waiting/job8", 9, 9, 9)), 0);
    assert_string_equal(tell_it(s, MU_FOLD_ON_CROWD, MU_FOLD_NODES), "progress");
    assert_string_equal(passes(s, 600000), "failed ERDZV_TIMEOUT, drop lease");
    assert_non_null(strstr(s->why.text, "; host was started with --nnodes 8, this node with --nnodes 2:3; "
                                        "node7 waits at the same endpoint for rendezvous 'job8'"));
}

static void members_of_a_round_that_runs_are_not_among_those_who_wait(void **state)
{
    struct scene *s = *state;

    join_beside_a_leader(s);
    (void)passes(s, MU_WAITERS_FIRST_MS);
    (void)wrote(s, true, 6);
    add_doc(s, 7, 20, them, 2);
    (void)changed(s, MU_FOLD_JOB);
    add_record(s, OTHER, 4, 1, true, 0); /* as it was when it joined */
    add_record(s, THIRD, 5, 2, true, 7); /* has left it since, and waits again */
    add_page(s, 7, them, 2);
    assert_string_equal(tell_it(s, MU_FOLD_ON_CROWD, MU_FOLD_NODES), "progress");
    assert_int_equal(mu_fold_crowd(s->fold)->count, 1);
}

static const char *looked(struct scene *s, struct mu_fold_event event)
{
    event.type = MU_FOLD_ON_CROWD;
    event.id = s->look_id;
    return step(s, event);
}

/* A look that its driver dropped had moved the time of the next one, and counted as one that may have left a mark. */
static void one_look_is_under_way_at_a_time(void **state)
{
    struct scene *s = *state;
    uint64_t first;

    join_beside_a_leader(s);
    assert_non_null(strstr(passes(s, MU_WAITERS_FIRST_MS), "look around"));
    (void)wrote(s, true, 6);
    first = s->look_id;
    assert_string_equal(passes(s, 60000), "");
    assert_string_equal(step(s, (struct mu_fold_event){ .type = MU_FOLD_ON_CROWD, .id = first + 1 }), "");
    assert_non_null(strstr(looked(s, (struct mu_fold_event){ .error = &s->why }), "look around")); /* is due */
    assert_int_not_equal(s->look_id, first);
    (void)wrote(s, true, 6);
    assert_string_equal(looked(s, (struct mu_fold_event){ .count = 0 }), "");
    assert_non_null(strstr(passes(s, 60000), "look around"));
}

/* A group that is there at once writes nothing of the kind. */
static void a_leader_that_waits_leaves_a_mark_and_takes_it_away_when_the_round_begins(void **state)
{
    struct scene *s = *state;

    join_as_leader(s);
    (void)folds(s);
    assert_non_null(strstr(passes(s, MU_WAITERS_FIRST_MS), "look around with a mark"));
    assert_null(strstr(looked(s, (struct mu_fold_event){ .error = &s->why }), "look around"));
    assert_non_null(strstr(passes(s, MU_WAITERS_FIRST_MS), "look around with a mark")); /* that one had failed */
    (void)looked(s, (struct mu_fold_event){ .held = true, .lease = 11 });
    assert_null(strstr(passes(s, 5000), "with a mark"));
    assert_non_null(strstr(s->trace, "look around"));
    add_doc(s, 7, 20, us, 2);
    assert_non_null(strstr(changed(s, MU_FOLD_JOB), "read seat"));
    assert_string_equal(seated(s), "unmark, joined");
}

static void an_etcd_that_was_never_heard_is_given_up_early(void **state)
{
    struct scene *s = *state;

    (void)asked(s, MU_FOLD_ON_JOIN);
    assert_string_equal(failed(s, s->load_id[MU_FOLD_JOB]), "backend_down");
    assert_string_equal(passes(s, FIRST_MS), "failed ERDZV_CONNECTION, drop lease, load job");
}

static void the_time_for_the_first_answer_ends_with_it(void **state)
{
    struct scene *s = *state;

    assert_int_equal(mu_fold_request_until_ms(s->fold, s->now_ms), UINT64_MAX);
    (void)asked(s, MU_FOLD_ON_LOOK);
    assert_int_equal(mu_fold_request_until_ms(s->fold, s->now_ms), UINT64_MAX);
    (void)asked(s, MU_FOLD_ON_JOIN);
    assert_int_equal(mu_fold_request_until_ms(s->fold, s->now_ms), s->now_ms + FIRST_MS);
    (void)passes(s, 10);
    (void)failed(s, s->load_id[MU_FOLD_JOB]);
    assert_int_equal(mu_fold_request_until_ms(s->fold, s->now_ms), s->now_ms - 10 + FIRST_MS);
    (void)leased(s, 11);
    assert_int_equal(mu_fold_request_until_ms(s->fold, s->now_ms), UINT64_MAX);
}

static void an_etcd_that_has_not_answered_is_the_cause_of_a_timeout(void **state)
{
    struct scene *s = *state;

    (void)asked(s, MU_FOLD_ON_JOIN);
    assert_string_equal(passes(s, 600000), "failed ERDZV_TIMEOUT, drop lease");
    assert_string_equal(s->why.text, "timed out after 600 s: etcd has not answered");
}

static void a_refusal_is_final(void **state)
{
    struct muster_error error = { .code = MUSTER_EINVAL, .text = "authentication failed" };
    struct scene *s = *state;

    (void)asked(s, MU_FOLD_ON_JOIN);
    assert_string_equal(step(s, (struct mu_fold_event){ .type = MU_FOLD_ON_REQUEST_FAILED,
                                                        .id = s->load_id[MU_FOLD_JOB],
                                                        .error = &error,
                                                        .final = true }),
                        "failed EINVAL, drop lease");
}

/* What may come later must not come over what is newer: it dies with its lease. */
static void a_record_in_doubt_is_given_up_with_its_lease(void **state)
{
    struct scene *s = *state;

    (void)asked(s, MU_FOLD_ON_JOIN);
    add_leader(s, OTHER, 5, 22);
    (void)loaded(s, MU_FOLD_JOB);
    (void)leased(s, 11);
    assert_string_equal(failed(s, s->write_id), "drop lease, backend_down");
    assert_string_equal(passes(s, MU_FOLD_RETRY_MS * 2), "load job, take lease");
    assert_string_equal(leased(s, 12),
                        "backend_up, write [ job/folder absent, job/doc absent] record(join 0) job/folder "
                        "else record");
}

/* While nothing was heard etcd may have lost what the others have written: they have a lease's time to do it again. */
static void who_had_a_record_in_doubt_judges_nobody_for_a_lease(void **state)
{
    struct scene *s = *state;

    (void)asked(s, MU_FOLD_ON_JOIN);
    (void)loaded(s, MU_FOLD_JOB);
    (void)leased(s, 11);
    assert_string_equal(failed(s, s->write_id), "drop lease, backend_down");
    add_leader(s, ME, 6, 12);
    add_doc(s, 7, 20, them, 2);
    (void)passes(s, MU_FOLD_RETRY_MS * 2);
    put_record(s, 12, 30);
    (void)kept(s, true);
    add_record(s, ME, 6, 1, true, 0);
    assert_null(strstr(folds(s), "missing"));
    (void)news_are_there(s, 7, 31, NULL, 0, 0);
    assert_null(strstr(passes(s, LEASE_MS / 2), "missing"));
    (void)news_are_there(s, 7, 32, NULL, 0, 0);
    assert_non_null(strstr(passes(s, LEASE_MS), "job/news(gone 0 1, 2 missing"));
}

/* Nothing of it can come later: the node keeps its lease, and its record stays what it was. */
static void a_record_that_is_refused_is_written_again_under_its_lease(void **state)
{
    struct scene *s = *state;

    (void)asked(s, MU_FOLD_ON_JOIN);
    add_leader(s, OTHER, 5, 22);
    (void)loaded(s, MU_FOLD_JOB);
    (void)leased(s, 11);
    assert_string_equal(refused(s, s->write_id), "backend_down");
    assert_string_equal(passes(s, MU_FOLD_RETRY_MS * 2), "load job, write [ job/folder absent, job/doc absent]"
                                                         " record(join 0) job/folder else record");
    assert_string_equal(loaded(s, MU_FOLD_JOB), "");
    assert_string_equal(wrote(s, true, 30), "backend_up");
}

/* Reads go through, and are no reason to try it faster, nor to say each time that all is well. */
static void what_is_refused_is_tried_ever_more_slowly_and_told_once(void **state)
{
    struct scene *s = *state;
    uint64_t since_ms, waited_ms = 0;

    (void)asked(s, MU_FOLD_ON_JOIN);
    add_leader(s, OTHER, 5, 22);
    (void)loaded(s, MU_FOLD_JOB);
    (void)leased(s, 11);
    assert_string_equal(refused(s, s->write_id), "backend_down");
    for (int i = 0; i < 10; i++) {
        since_ms = s->now_ms;
        while (strstr(passes(s, 1), "record(join 0)") == NULL)
            assert_null(strstr(s->trace, "backend"));
        waited_ms = s->now_ms - since_ms;
        assert_null(strstr(loaded(s, MU_FOLD_JOB), "backend"));
        assert_string_equal(refused(s, s->write_id), "");
    }
    assert_in_range(waited_ms, MU_FOLD_RETRY_MAX_MS / 2, MU_FOLD_RETRY_MAX_MS * 2);
}

/* A node that gives up what was refused has nothing to complain of. */
static void what_was_refused_and_is_not_wanted_any_more_is_forgotten(void **state)
{
    struct scene *s = *state;

    (void)asked(s, MU_FOLD_ON_JOIN);
    add_leader(s, OTHER, 5, 22);
    (void)loaded(s, MU_FOLD_JOB);
    (void)leased(s, 11);
    assert_string_equal(refused(s, s->write_id), "backend_down");
    assert_string_equal(asked(s, MU_FOLD_ON_LEAVE), "drop lease");
    assert_string_equal(passes(s, MU_FOLD_RETRY_MAX_MS), "load job");
    assert_string_equal(loaded(s, MU_FOLD_JOB), "backend_up");
}

/* ---- Folding ---- */

static void the_maximum_completes_a_round_at_once(void **state)
{
    struct scene *s = *state;
    char members[64];

    join_as_leader(s);
    add_both(s);
    add_record(s, THIRD, 5, 1, true, 0);
    assert_string_equal(folds(s), "grant job");
    /* Ranks by the revisions that created their records. */
    assert_string_equal(granted(s, 900), "write [ job/folder mod 6, job/doc absent, job/closed absent]"
                                         " page 0 seat 33=0 seat 11=1 seat 22=2 job/doc");
    assert_string_equal(list_members(s, members), "33 11 22");
    assert_non_null(strstr(s->doc, "\"one_host\":true,\"first\":[\"host\",1,1]"));
    assert_non_null(strstr(s->doc, "\"round\":0"));
    assert_string_equal(wrote(s, true, 30), "completed");
}

static void the_minimum_waits_for_the_last_call(void **state)
{
    struct scene *s = *state;

    join_as_leader(s);
    add_both(s);
    (void)folds(s);
    assert_string_equal(granted(s, 900), "write [ job/folder mod 6, job/doc absent] job/news(gone; waiting 0)");
    (void)news_are_there(s, 0, 30, NULL, 0, 0);
    assert_null(strstr(passes(s, 29000), "job/doc absent,"));
    (void)news_are_there(s, 0, 31, NULL, 0, 0);
    assert_non_null(strstr(passes(s, 1500), "job/closed absent] page 0"));
}

/* A leader whose last call began now; the news of it are there. */
static void begin_last_call(struct scene *s)
{
    join_as_leader(s);
    add_both(s);
    (void)folds(s);
    (void)granted(s, 900);
    (void)wrote(s, true, 30);
    add_full_news(s, 30, &(struct mu_fold_news){ .joined = 2, .last_call_ms = 30000 });
    assert_string_equal(changed(s, MU_FOLD_JOB), "progress");
}

/* As when etcd has compacted what the watch would have gone on with: all is read again, and nothing has changed. */
static void read_again(struct scene *s)
{
    assert_string_equal(step(s, (struct mu_fold_event){ .type = MU_FOLD_ON_STALE, .scope = MU_FOLD_JOB }),
                        "unwatch nodes, load job");
    add_leader(s, ME, 6, 11);
    add_full_news(s, 30, &(struct mu_fold_news){ .joined = 2, .last_call_ms = 30000 });
    assert_non_null(strstr(loaded(s, MU_FOLD_JOB), "leader, load nodes"));
    add_both(s);
    assert_string_equal(folds(s), "");
}

static void what_is_read_again_does_not_prolong_the_last_call(void **state)
{
    struct scene *s = *state;
    uint64_t until_ms;

    begin_last_call(s);
    until_ms = mu_fold_progress(s->fold).last_call_until_ms;
    assert_int_equal(until_ms, s->now_ms + 30000);
    for (int i = 0; i < 2; i++) {
        s->now_ms += 10000;
        read_again(s);
        assert_int_equal(mu_fold_progress(s->fold).last_call_until_ms, until_ms);
    }
    assert_string_equal(passes(s, 9999), "");
    assert_non_null(strstr(passes(s, 1), "job/closed absent] page 0"));
}

static void a_leader_of_a_new_place_begins_a_last_call_of_its_own(void **state)
{
    struct scene *s = *state;

    begin_last_call(s);
    s->now_ms += 20000;
    add_leader(s, OTHER, 40, 22);
    (void)changed(s, MU_FOLD_JOB);
    (void)wrote(s, true, 41); /* it has looked at its record */
    add_leader(s, ME, 50, 11);
    assert_non_null(strstr(changed(s, MU_FOLD_JOB), "leader, load nodes"));
    add_both(s);
    assert_string_equal(folds(s), "");
    assert_null(strstr(passes(s, 29999), "job/doc absent,"));
    assert_non_null(strstr(passes(s, 1), "job/closed absent] page 0"));
}

static void a_record_that_is_gone_is_news_at_once(void **state)
{
    struct scene *s = *state;

    fold_round(s, us);
    add_both(s);
    assert_string_equal(folds(s), "");
    assert_string_equal(deleted(s, MU_FOLD_NODES, "nodes/0000000000000022/0000000000000007", 40),
                        "write [ job/folder mod 6, job/doc mod 20] job/news(gone 0, 1 missing; waiting 0)");
}

static void a_record_that_says_so_has_left(void **state)
{
    struct scene *s = *state;

    fold_round(s, us);
    add_record(s, ME, 6, 1, true, 0);
    add_record(s, OTHER, 7, 2, true, 7);
    assert_string_equal(folds(s), "write [ job/folder mod 6, job/doc mod 20] job/news(gone 0; waiting 1)");
}

/* Of round 7, which OTHER and we are in (or were), and who comes: each with these limits. */
struct limits_row {
    const char *name;
    bool back; /* OTHER and we have left the round */
    int64_t limits[2], third[2], fourth[2];
    const char *news; /* NULL: a round is written, of these: */
    const char *members;
};

static void add_newcomer(struct scene *s, uint64_t id, int64_t create, const int64_t limits[2])
{
    if (limits[0] > 0)
        add_full_record(
            s, id, create,
            (struct mu_fold_record){ .nodes_min = limits[0], .nodes_max = limits[1], .seq = 1, .joining = true });
}

static void fold_newcomers(struct scene *s, const struct limits_row *row)
{
    static const uint32_t both[] = { 0, 1 };
    const struct mu_fold_record record = {
        .nodes_min = row->limits[0], .nodes_max = row->limits[1], .seq = 1, .joining = true, .world = row->back ? 7 : 0
    };

    begin(s, row->limits[0], row->limits[1]);
    (void)asked(s, MU_FOLD_ON_JOIN);
    add_leader(s, ME, 6, 11);
    add_doc(s, 7, 20, us, 2);
    if (row->back)
        add_news(s, 7, 20, both, 2, 0);
    put_record(s, 11, 21);
    add_full_record(s, ME, 6, record);
    add_full_record(s, OTHER, 7, record);
    add_newcomer(s, THIRD, 8, row->third);
    add_newcomer(s, 0x44, 9, row->fourth);
    (void)folds(s);
}

static void a_newcomer_whose_limits_do_not_suit_is_left_out(void **state)
{
    static const struct limits_row rows[] = {
        { "suits", false, { 2, 4 }, { 2, 4 }, { 0, 0 }, "(gone; waiting 1)", NULL },
        { "contradicts", false, { 2, 4 }, { 8, 8 }, { 0, 0 }, "(gone; waiting 0; 1 spare, 1 apart)", NULL },
        { "contradicts, beside one that suits",
          false,
          { 2, 4 },
          { 8, 8 },
          { 2, 4 },
          "(gone; waiting 1; 1 spare, 1 apart)",
          NULL },
        { "contradicts itself", false, { 2, 4 }, { 4, 3 }, { 0, 0 }, "(gone; waiting 0; 1 spare, 1 apart)", NULL },
        { "newcomers contradict each other: who came first",
          false,
          { 1, 8 },
          { 1, 3 },
          { 4, 8 },
          "(gone; waiting 1; 1 spare, 1 apart)",
          NULL },
        { "wants more than there are",
          false,
          { 2, 8 },
          { 4, 8 },
          { 0, 0 },
          "(gone; waiting 0; 1 spare, 0 apart)",
          NULL },
        { "wants as many as there are", false, { 2, 8 }, { 4, 8 }, { 2, 8 }, "(gone; waiting 2)", NULL },
        { "wants more than there are, and would keep out one that suits",
          false,
          { 2, 8 },
          { 6, 8 },
          { 2, 4 },
          "(gone; waiting 1; 1 spare, 1 apart)",
          NULL },
        { "allows so few that it has no place",
          false,
          { 2, 4 },
          { 1, 2 },
          { 0, 0 },
          "(gone; waiting 0; 1 spare, 0 apart)",
          NULL },
        { "contradicts those who are back", true, { 2, 2 }, { 8, 8 }, { 0, 0 }, NULL, "22 11" },
        { "wants more than are back", true, { 2, 8 }, { 8, 8 }, { 0, 0 }, NULL, "22 11" },
        { "allows fewer than are back", true, { 2, 8 }, { 1, 1 }, { 2, 8 }, NULL, "22 11 44" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct scene *s = calloc(1, sizeof *s);
        char members[64];

        assert_non_null(s);
        fold_newcomers(s, &rows[i]);
        if (rows[i].news != NULL && strstr(s->trace, rows[i].news) == NULL)
            fail_msg("a newcomer that %s: %s", rows[i].name, s->trace);
        if (rows[i].members != NULL) {
            if (strcmp(list_members(s, members), rows[i].members) != 0)
                fail_msg("a newcomer that %s: %s", rows[i].name, members);
        }
        (void)tear_down((void **)&s);
    }
}

/* Then there is nobody whose round could be kept from them. */
static void newcomers_alone_are_waited_for(void **state)
{
    static const uint64_t dead[] = { 0x55, 0x66 };
    struct scene *s = *state;
    struct mu_fold_record record = { .nodes_min = 3, .nodes_max = 3, .seq = 1, .joining = true };

    fold_round(s, dead);
    add_full_record(s, ME, 6, record);
    add_full_record(s, OTHER, 7, record);
    assert_non_null(strstr(folds(s), "job/news(gone 0 1, 2 missing; waiting 0)"));
    (void)wrote(s, true, 22);
    add_losses(s, 7, 22, (const uint32_t[]){ 0, 1 }, 2);
    (void)changed(s, MU_FOLD_JOB);
    add_full_record(s, THIRD, 8, record);
    assert_non_null(strstr(changed(s, MU_FOLD_NODES), "job/closed absent] page 0"));
}

/* After etcd has lost its data: whoever is in, its limits are not known before its record is there again. */
static void newcomers_wait_for_the_limits_of_whoever_is_in(void **state)
{
    struct scene *s = *state;

    be_leader_again(s);
    add_record(s, THIRD, 51, 1, true, 0);
    assert_non_null(strstr(folds(s), "(gone; waiting 0; 1 spare, 0 apart)"));
    (void)wrote(s, true, 52);
    add_full_news(s, 52, &(struct mu_fold_news){ .world = 7, .spares = 1, .last_call_ms = -1 });
    (void)changed(s, MU_FOLD_JOB);
    add_record(s, OTHER, 52, 2, false, 7);
    assert_non_null(strstr(changed(s, MU_FOLD_NODES), "(gone; waiting 1)"));
}

static void limits_that_do_not_go_together_are_named_as_the_cause(void **state)
{
    struct scene *s = *state;

    join_beside_a_leader(s);
    add_doc(s, 7, 20, them, 2);
    add_full_news(s, 20, &(struct mu_fold_news){ .world = 7, .spares = 1, .apart = 1, .last_call_ms = -1 });
    (void)changed(s, MU_FOLD_JOB);
    assert_string_equal(passes(s, 600000), "failed ERDZV_TIMEOUT, drop lease");
    assert_non_null(
        strstr(s->why.text,
               "1 node was started with an --nnodes that does not go together with that of the others; this node has "
               "--nnodes 2:3"));
}

static void news_that_count_more_than_there_are_do_no_harm(void **state)
{
    static const uint64_t full[] = { 2, 3, 4 };
    static const uint32_t gone[] = { 5, 6, 7, 8 };
    struct scene *s = *state;

    join_beside_a_leader(s);
    add_doc(s, 7, 20, full, 3);
    assert_string_equal(changed(s, MU_FOLD_JOB), "progress, read seat");
    assert_true(mu_fold_progress(s->fold).spare);
    add_news(s, 7, 21, gone, 4, 0);
    assert_string_equal(changed(s, MU_FOLD_JOB), "progress");
    assert_string_equal(seated(s), "");
    assert_false(mu_fold_progress(s->fold).spare);
    assert_int_equal(mu_fold_phase(s->fold), MU_FOLD_JOINING);
}

/* The older record of a node that has taken a new lease may be there for a while. */
static void the_newest_record_of_a_node_counts(void **state)
{
    struct scene *s = *state;

    fold_round(s, us);
    add_record(s, ME, 6, 1, true, 0);
    add_record(s, OTHER, 7, 2, false, 7);
    add_record(s, OTHER, 9, 1, true, 7);
    assert_string_equal(folds(s), "");
}

static void nobody_starts_anew_while_somebody_is_in(void **state)
{
    struct scene *s = *state;

    be_member(s);
    (void)asked(s, MU_FOLD_ON_JOIN);
    (void)wrote(s, true, 21);
    add_leader(s, ME, 22, 11);
    assert_string_equal(changed(s, MU_FOLD_JOB), "leader, load nodes, keep job");
    add_record(s, ME, 6, 2, true, 7);
    add_record(s, OTHER, 7, 1, true, 0);
    add_record(s, THIRD, 8, 1, true, 0);
    assert_non_null(strstr(folds(s), "job/news(gone 1; waiting 2)"));
    (void)news_are_there(s, 7, 23, (const uint32_t[]){ 1 }, 1, 2);
    add_record(s, OTHER, 7, 2, true, 7); /* now everybody is out, and back: no last call */
    /* Members of the last round come first, in their order. Its seats and pages go. */
    assert_string_equal(changed(s, MU_FOLD_NODES), "write [ job/folder mod 22, job/doc mod 20, job/closed absent]"
                                                   " page 0 seat 22=0 seat 11=1 seat 33=2 job/doc -seats 7 -pages 7");
    assert_non_null(strstr(s->doc, "\"round\":8"));
}

static void a_leader_that_is_not_any_more_stops_at_once(void **state)
{
    struct scene *s = *state;

    fold_round(s, us);
    add_leader(s, OTHER, 50, 22);
    assert_string_equal(changed(s, MU_FOLD_JOB), "unwatch nodes");
    add_record(s, ME, 6, 1, true, 0);
    assert_string_equal(changed(s, MU_FOLD_NODES), "");
}

static void an_empty_place_is_taken_by_turns(void **state)
{
    struct scene *s = *state;

    be_member(s);
    assert_string_equal(deleted(s, MU_FOLD_JOB, "job/folder", 30), "");
    assert_string_equal(passes(s, MU_FOLD_CROWN_MS / 2), "");
    assert_string_equal(passes(s, MU_FOLD_CROWN_MS * 2), "write [ job/folder absent] job/folder");
}

/* We have given up the lease that it is under, and nobody knows when that ends: a store that suspects the network lets
 * it last. Everybody else waits for us. */
static void a_place_that_is_ours_under_an_earlier_lease_is_taken_again(void **state)
{
    struct scene *s = *state;

    be_member(s);
    (void)lose_lease(s);
    add_leader(s, ME, 50, 11);
    add_doc(s, 7, 20, us, 2);
    put_record(s, 12, 51);
    assert_false(mu_fold_is_leader(s->fold));
    assert_string_equal(passes(s, MU_FOLD_CROWN_MS * 3), "write [ job/folder mod 50] job/folder");
    (void)wrote(s, true, 52);
    add_leader(s, ME, 52, 12);
    assert_string_equal(changed(s, MU_FOLD_JOB), "leader, load nodes, keep job");
}

static void the_leader_keeps_the_lease_of_the_job(void **state)
{
    struct scene *s = *state;

    fold_round(s, us);
    assert_true(s->keep_id != 0);
    assert_string_equal(kept(s, true), "");
    assert_string_equal(passes(s, JOB_MS / 3), "keep job");
    assert_string_equal(kept(s, false), "unwatch nodes, load job");
}

/* ---- Members ---- */

static void losses_are_told_once_and_again_when_there_are_more(void **state)
{
    static const uint64_t three[] = { OTHER, ME, THIRD };
    static const uint32_t gone[] = { 0, 2 };
    struct scene *s = *state;

    join_beside_a_leader(s);
    add_doc(s, 7, 20, three, 3);
    (void)changed(s, MU_FOLD_JOB);
    (void)seated(s);
    add_news(s, 7, 21, gone, 1, 0);
    assert_string_equal(changed(s, MU_FOLD_JOB), "lost");
    assert_true(mu_fold_is_lost(s->fold, 0) && !mu_fold_is_lost(s->fold, 2));
    add_news(s, 7, 22, gone, 1, 1);
    assert_string_equal(changed(s, MU_FOLD_JOB), "waiting");
    add_news(s, 7, 23, gone, 2, 1);
    assert_string_equal(changed(s, MU_FOLD_JOB), "lost");
    add_news(s, 6, 24, gone, 2, 1); /* of another world */
    assert_string_equal(changed(s, MU_FOLD_JOB), "");
}

static void a_round_that_is_over_when_we_see_it_is_told_as_that(void **state)
{
    static const uint32_t gone[] = { 0 };
    struct scene *s = *state;

    join_beside_a_leader(s);
    add_doc(s, 7, 20, us, 2);
    add_news(s, 7, 21, gone, 1, 0);
    assert_string_equal(changed(s, MU_FOLD_JOB), "progress, read seat");
    assert_string_equal(seated(s), "joined, lost");
}

static void another_world_means_that_we_were_removed(void **state)
{
    struct scene *s = *state;

    be_member(s);
    add_doc(s, 8, 30, them, 2);
    assert_string_equal(changed(s, MU_FOLD_JOB), "removed, drop lease");
    assert_int_equal(mu_fold_phase(s->fold), MU_FOLD_IDLE);
}

static void news_of_our_own_end_mean_it_too(void **state)
{
    static const uint32_t gone[] = { 1 };
    struct scene *s = *state;

    be_member(s);
    add_news(s, 7, 21, gone, 1, 0);
    assert_string_equal(changed(s, MU_FOLD_JOB), "removed, drop lease");
}

static void waiting_nodes_are_told_after_the_hold_down_and_not_while_etcd_is_away(void **state)
{
    struct scene *s = *state;

    s->hold_ms = 1000;
    be_member(s);
    add_news(s, 7, 21, NULL, 0, 1);
    assert_string_equal(changed(s, MU_FOLD_JOB), "");
    assert_true(mu_fold_deadline_ms(s->fold) == s->now_ms + 1000);
    assert_string_equal(trouble(s, true), "backend_down");
    assert_string_equal(trouble(s, true), "");
    assert_string_equal(passes(s, 2000), "");
    assert_string_equal(trouble(s, false), "backend_up, waiting");
}

/* Also one that has nothing to report, such as a node that could not start its workers, is not lost. */
static void a_member_says_that_it_leaves_before_it_drops_its_lease(void **state)
{
    struct scene *s = *state;

    be_member(s);
    assert_string_equal(asked(s, MU_FOLD_ON_LEAVE),
                        "write [ job/doc mod 20] record(stay 7; left -1 at 0) goodbye@900 else record");
    assert_string_equal(wrote(s, true, 40), "drop lease");
    assert_string_equal(step(s, (struct mu_fold_event){ .type = MU_FOLD_ON_DROPPED, .id = s->drop_id }), "left");
}

static void a_goodbye_that_fails_is_not_said_again(void **state)
{
    struct scene *s = *state;

    be_member(s);
    (void)asked(s, MU_FOLD_ON_LEAVE);
    assert_string_equal(failed(s, s->write_id), "backend_down, drop lease");
    assert_string_equal(step(s, (struct mu_fold_event){ .type = MU_FOLD_ON_DROPPED, .id = s->drop_id }), "left");
}

static void leaving_drops_the_lease_and_is_told_when_that_is_over(void **state)
{
    struct scene *s = *state;

    join_beside_a_leader(s);
    assert_string_equal(asked(s, MU_FOLD_ON_LEAVE), "drop lease");
    assert_string_equal(step(s, (struct mu_fold_event){ .type = MU_FOLD_ON_DROPPED, .id = s->drop_id }), "left");
    assert_string_equal(asked(s, MU_FOLD_ON_LEAVE), "left");
}

static void closing_is_a_key_of_its_own(void **state)
{
    struct scene *s = *state;

    be_member(s);
    assert_string_equal(asked(s, MU_FOLD_ON_CLOSE), "write [ job/closed absent] job/closed");
    (void)wrote(s, true, 40);
    add_closed(s);
    assert_string_equal(changed(s, MU_FOLD_JOB), "closed");
    assert_string_equal(asked(s, MU_FOLD_ON_CLOSE), "closed");
}

static void closing_takes_a_lease_if_there_is_none_and_gives_up_in_time(void **state)
{
    struct scene *s = *state;

    assert_string_equal(asked(s, MU_FOLD_ON_CLOSE), "load job");
    assert_string_equal(loaded(s, MU_FOLD_JOB), "grant job");
    assert_string_equal(failed(s, s->grant_id), "backend_down");
    assert_string_equal(passes(s, 30000), "failed ERDZV_TIMEOUT");
}

static void a_look_needs_no_membership(void **state)
{
    struct scene *s = *state;

    assert_string_equal(asked(s, MU_FOLD_ON_LOOK), "load job");
    assert_string_equal(loaded(s, MU_FOLD_JOB), "looked at nothing");
    assert_string_equal(asked(s, MU_FOLD_ON_LOOK), "looked at nothing");
    add_leader(s, OTHER, 6, 5); /* nodes gather, and no round was formed yet */
    (void)changed(s, MU_FOLD_JOB);
    assert_string_equal(asked(s, MU_FOLD_ON_LOOK), "looked");
}

static void a_look_while_etcd_is_away_fails_at_once(void **state)
{
    struct scene *s = *state;

    be_member(s);
    (void)trouble(s, true);
    assert_string_equal(asked(s, MU_FOLD_ON_LOOK), "looked ECONNECT");
    assert_string_equal(asked(s, MU_FOLD_ON_LOOK), "looked ECONNECT");
    assert_string_equal(trouble(s, false), "backend_up");
    assert_string_equal(asked(s, MU_FOLD_ON_LOOK), "looked");
}

/* ---- When etcd was away ---- */

/* Nothing would have told it that etcd has lost its data since. */
static void without_a_lease_what_was_read_is_read_again(void **state)
{
    struct scene *s = *state;

    be_member(s);
    (void)trouble(s, true);
    assert_string_equal(trouble(s, false), "backend_up");
    (void)asked(s, MU_FOLD_ON_LEAVE);
    assert_string_equal(passes(s, MU_FOLD_LEAVE_MS), "drop lease, load job");
    (void)loaded(s, MU_FOLD_JOB);
    (void)trouble(s, true);
    assert_string_equal(trouble(s, false), "backend_up, load job");
}

static void a_lost_lease_is_replaced_and_the_record_says_stay(void **state)
{
    struct scene *s = *state;

    be_member(s);
    assert_string_equal(lose_lease(s), "load job, take lease");
    add_leader(s, OTHER, 5, 22);
    add_doc(s, 7, 20, us, 2);
    assert_string_equal(loaded(s, MU_FOLD_JOB), "");
    assert_string_equal(leased(s, 12), "write record(stay 7)");
    assert_int_equal(mu_fold_phase(s->fold), MU_FOLD_MEMBER);
}

static void after_that_nobody_is_gone_for_a_lease(void **state)
{
    struct scene *s = *state;

    be_leader_again(s);
    assert_string_equal(folds(s), ""); /* OTHER's is missing */
    assert_string_equal(passes(s, LEASE_MS - 1), "");
    assert_string_equal(passes(s, 1),
                        "write [ job/folder mod 50, job/doc mod 20] job/news(gone 0, 1 missing; waiting 0)");
}

static void a_document_that_is_missing_is_not_put_back_by_members(void **state)
{
    struct scene *s = *state;

    be_member(s);
    assert_string_equal(deleted(s, MU_FOLD_JOB, "job/doc", 30), "write record(stay 7)");
    assert_string_equal(wrote(s, true, 31), "");
    assert_string_equal(passes(s, 2 * LEASE_MS), "");
    assert_int_equal(mu_fold_phase(s->fold), MU_FOLD_MEMBER);
}

static void no_first_round_is_made_while_somebody_holds_one(void **state)
{
    struct scene *s = *state;

    join_as_leader(s);
    add_both(s);
    add_record(s, THIRD, 5, 1, true, 0);
    add_full_record(s, 4, 8, (struct mu_fold_record){ .nodes_min = 1, .nodes_max = 4, .world = 77, .nodes = 4 });
    (void)folds(s);
    assert_string_equal(granted(s, 900), "write [ job/folder mod 6, job/doc absent] job/news(gone; waiting 0)");
}

static void missed_changes_are_read_again(void **state)
{
    struct scene *s = *state;

    be_member(s);
    assert_string_equal(step(s, (struct mu_fold_event){ .type = MU_FOLD_ON_STALE, .scope = MU_FOLD_JOB }), "load job");
    add_doc(s, 8, 30, them, 2);
    assert_string_equal(changed(s, MU_FOLD_JOB), ""); /* of a watch that is over */
    add_leader(s, OTHER, 5, 22);
    add_doc(s, 7, 20, us, 2);
    assert_string_equal(loaded(s, MU_FOLD_JOB), "");
}

static void answers_to_nothing_are_dropped(void **state)
{
    struct scene *s = *state;

    be_member(s);
    for (int type = MU_FOLD_ON_LOADED; type <= MU_FOLD_ON_REQUEST_FAILED; type++) {
        if (type == MU_FOLD_ON_CHANGED || type == MU_FOLD_ON_STALE || type == MU_FOLD_ON_TROUBLE)
            continue;
        assert_string_equal(
            step(s, (struct mu_fold_event){ .type = (enum mu_fold_event_type)type, .id = 4711, .lease = 3 }), "");
    }
    assert_int_equal(mu_fold_phase(s->fold), MU_FOLD_MEMBER);
}

/* A step of which only the ids are kept. */
static void blind_step(struct mu_fold *fold, struct scene *s, struct mu_fold_event event)
{
    struct mu_fold_effects effects;

    s->now_ms += 2000;
    event.now_ms = s->now_ms;
    mu_fold_step(fold, &event, &effects);
    for (unsigned i = 0; i < effects.count; i++) {
        const struct mu_fold_effect *effect = &effects.items[i];

        if (effect->type == MU_FOLD_DO_LOAD)
            s->load_id[effect->scope] = effect->id;
        else if (effect->type == MU_FOLD_DO_TAKE_LEASE)
            s->take = effect->id;
        else if (effect->type == MU_FOLD_DO_WRITE)
            s->write_id = effect->id;
        else if (effect->type == MU_FOLD_DO_RANGE && mu_slice_equal(effect->key, mu_slice_str("member/")))
            s->pages_id = effect->id;
        else if (effect->type == MU_FOLD_DO_RANGE)
            s->seat_id = effect->id; /* or of names */
    }
}

/* A leader's life, again and again the same answers, until all of it has been taken in. */
static bool live(struct mu_fold *fold, struct scene *s, size_t job_count, size_t nodes_count)
{
    const struct mu_fold_event read = { .type = MU_FOLD_ON_RANGED,
                                        .kvs = s->kvs + job_count + nodes_count,
                                        .count = s->count - job_count - nodes_count };
    bool leader = false;

    blind_step(fold, s, (struct mu_fold_event){ .type = MU_FOLD_ON_JOIN });
    for (int turn = 0; turn < 8; turn++) {
        struct mu_fold_event seat = read, pages = read;

        blind_step(fold, s, (struct mu_fold_event){ .type = MU_FOLD_ON_LEASED, .id = s->take, .lease = 11 });
        blind_step(fold, s,
                   (struct mu_fold_event){ .type = MU_FOLD_ON_LOADED,
                                           .id = s->load_id[MU_FOLD_JOB],
                                           .scope = MU_FOLD_JOB,
                                           .kvs = s->kvs,
                                           .count = job_count });
        for (int i = 0; i < 2; i++) {
            seat.id = s->seat_id;
            blind_step(fold, s, seat);
        }
        blind_step(fold, s, (struct mu_fold_event){ .type = MU_FOLD_ON_WROTE, .id = s->write_id, .held = true });
        blind_step(fold, s,
                   (struct mu_fold_event){ .type = MU_FOLD_ON_LOADED,
                                           .id = s->load_id[MU_FOLD_NODES],
                                           .scope = MU_FOLD_NODES,
                                           .kvs = s->kvs + job_count,
                                           .count = nodes_count });
        pages.id = s->pages_id;
        blind_step(fold, s, pages);
        blind_step(fold, s, (struct mu_fold_event){ .type = MU_FOLD_ON_TIME });
        leader |= mu_fold_is_leader(fold);
    }
    return leader && mu_fold_phase(fold) == MU_FOLD_MEMBER;
}

static void memory_that_is_missing_once_is_asked_for_again(void **state)
{
    struct scene *s = *state;
    struct mu_fold_config config = { .settings = MU_RDZV_SETTINGS_DEFAULT,
                                     .name = "host",
                                     .id = ME,
                                     .lease_ms = LEASE_MS,
                                     .job_lease_ms = JOB_MS,
                                     .first_ms = FIRST_MS,
                                     .ops_max = MU_FOLD_OPS_MIN,
                                     .wants_names = true };

    config.settings.nodes_max = MAX;
    add_doc(s, 7, 20, us, 2);
    add_leader(s, ME, 6, 11);
    add_news(s, 7, 20, NULL, 0, 0);
    add_both(s);
    add_seat(s, 7, 1);
    add_page(s, 7, us, 2);
    for (size_t i = 0; i < s->count; i++)
        s->kvs[i].value = mu_buf_slice(&s->values[i]);
    FOR_EACH_FAILURE (nth) {
        struct mu_fold *fold = NULL;
        int rc = mu_fold_new(&config, &fold, NULL);

        if (rc == 0)
            assert_true(live(fold, s, 3, 2));
        else
            assert_int_equal(rc, MUSTER_ENOMEM);
        mu_fold_free(fold);
    }
}

/* Whether there is no memory for reading this record if the nth allocation from now on fails. */
static bool is_unreadable_without(unsigned long nth, struct mu_slice value)
{
    struct mu_fold_record record;
    int rc;

    fail_alloc_at(nth);
    rc = mu_fold_record_read(value, &record, NULL);
    fail_alloc_at(0);
    return rc == MUSTER_ENOMEM;
}

static void missing_memory_is_nobody_s_death(void **state)
{
    struct scene *s = *state;
    json_malloc_t allocate;
    json_free_t release;
    int failures = 0;

    json_get_alloc_funcs(&allocate, &release);
    json_set_alloc_funcs(malloc, free); /* those that can fail here */
    fold_round(s, us);
    add_both(s);
    assert_string_equal(folds(s), "");
    for (unsigned long nth = 1; nth <= 8; nth++) {
        add_record(s, OTHER, 7, 1, true, 0);
        if (!is_unreadable_without(nth, mu_buf_slice(&s->values[0]))) {
            forget(s);
            continue;
        }
        failures++;
        fail_alloc_at(nth);
        (void)changed(s, MU_FOLD_NODES);
        fail_alloc_at(0);
        assert_string_equal(s->trace, "");
        assert_string_equal(passes(s, 2 * MU_FOLD_RETRY_MS), "load nodes");
        add_record(s, ME, 6, 1, true, 0);
        add_record(s, OTHER, 7, 1, true, 0);
        assert_string_equal(folds(s), "");
    }
    assert_true(failures > 0);
    /* Likewise the leader's place: it is read again, and we are still the leader. */
    add_leader(s, ME, 6, 11);
    fail_alloc_at(1);
    (void)changed(s, MU_FOLD_JOB);
    fail_alloc_at(0);
    assert_string_equal(s->trace, "unwatch nodes");
    assert_string_equal(passes(s, 2 * MU_FOLD_RETRY_MS), "load job");
    add_leader(s, ME, 6, 11);
    add_doc(s, 7, 20, us, 2);
    assert_non_null(strstr(loaded(s, MU_FOLD_JOB), "leader, load nodes"));
    json_set_alloc_funcs(allocate, release);
}

static void a_name_that_is_too_long_is_refused(void **state)
{
    char name[MU_FOLD_NAME_MAX + 2];
    struct mu_fold_config config = { .name = name, .id = 1, .lease_ms = 1, .job_lease_ms = 1, .first_ms = 1 };
    struct mu_fold *fold = NULL;

    (void)state;
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    assert_int_equal(mu_fold_new(&config, &fold, NULL), MUSTER_EINVAL);
}

/* ---- Seats ---- */

/* It joins, and the world of round 7 has come, which we ask for a seat. */
static void ask_seat(struct scene *s)
{
    join_beside_a_leader(s);
    add_doc(s, 7, 20, us, 2);
    assert_string_equal(changed(s, MU_FOLD_JOB), "progress, read seat");
}

static void a_seat_that_fails_is_asked_for_again(void **state)
{
    struct scene *s = *state;

    ask_seat(s);
    assert_string_equal(failed(s, s->seat_id), "backend_down");
    assert_string_equal(passes(s, 2 * MU_FOLD_RETRY_MS), "read seat");
    assert_string_equal(seated(s), "backend_up, joined");
}

/* It says which one it was asked for, so that nobody takes the seat of another world. */
static void a_seat_of_another_world_is_none(void **state)
{
    struct scene *s = *state;

    ask_seat(s);
    add_seat(s, 6, 1);
    assert_string_equal(ranged(s, &s->seat_id), "");
    assert_int_equal(mu_fold_phase(s->fold), MU_FOLD_JOINING);
}

static void an_answer_that_comes_after_the_document_has_changed_is_dropped(void **state)
{
    struct scene *s = *state;
    uint64_t first;

    ask_seat(s);
    first = s->seat_id;
    add_doc(s, 8, 30, them, 2);
    assert_string_equal(changed(s, MU_FOLD_JOB), "progress, read seat");
    assert_int_not_equal(s->seat_id, first);
    add_seat(s, 7, 1);
    assert_string_equal(tell(s, MU_FOLD_ON_RANGED, MU_FOLD_JOB, first), "");
    assert_string_equal(seated(s), "");
    assert_int_equal(mu_fold_phase(s->fold), MU_FOLD_JOINING);
}

static void an_answer_that_comes_when_there_is_no_document_is_dropped(void **state)
{
    struct scene *s = *state;
    uint64_t first;

    ask_seat(s);
    first = s->seat_id;
    assert_string_equal(deleted(s, MU_FOLD_JOB, "job/doc", 30), "progress");
    add_seat(s, 7, 1);
    assert_string_equal(tell(s, MU_FOLD_ON_RANGED, MU_FOLD_JOB, first), "");
    add_doc(s, 7, 31, us, 2); /* it is put back */
    assert_string_equal(changed(s, MU_FOLD_JOB), "progress, read seat");
    assert_string_equal(seated(s), "joined");
}

/* Who waits for nothing else: the leader hears that we are not in this one. */
static void a_seat_that_none_of_us_wrote_is_left(void **state)
{
    static const char *const bad[] = { "garbage", "", "{\"v\": 2}", "{\"v\": 2, \"rank\": 2}",
                                       "{\"v\": 1, \"rank\": 1}" };

    for (size_t i = 0; i < COUNT(bad); i++) {
        struct scene *s = *state;

        ask_seat(s);
        assert_int_equal(
            mu_buf_assign(add(s, "seat/0000000000000007/0000000000000011", 1, 1, JOB_LEASE), mu_slice_str(bad[i])), 0);
        assert_string_equal(ranged(s, &s->seat_id), "foreign, write record(join 7)");
        assert_int_equal(mu_fold_phase(s->fold), MU_FOLD_JOINING);
        (void)tear_down(state);
        (void)set_up(state);
    }
}

/* ---- Names ---- */

static void ask_names(struct scene *s)
{
    mu_fold_free(s->fold);
    begin_with(s, MIN, MAX, (struct mu_fold_config){ .ops_max = MU_FOLD_OPS_MIN, .wants_names = true });
    ask_seat(s);
    assert_string_equal(seated(s), "read names");
}

static void names_are_known_before_the_round_is_joined(void **state)
{
    struct scene *s = *state;

    ask_names(s);
    assert_null(mu_fold_names(s->fold));
    add_page(s, 7, us, 2);
    assert_string_equal(ranged(s, &s->seat_id), "joined");
    assert_int_equal(mu_fold_names(s->fold)->count, 2);
    assert_true(mu_fold_names(s->fold)->items[0].id == OTHER && mu_fold_names(s->fold)->items[1].id == ME);
    assert_string_equal(asked(s, MU_FOLD_ON_JOIN), "progress, write record(join 7)");
    assert_null(mu_fold_names(s->fold));
}

static void members_and_those_that_are_lost_are_named(void **state)
{
    static const uint32_t gone[] = { 0 };
    struct scene *s = *state;
    struct mu_node named[2];

    assert_int_equal(mu_fold_name(s->fold, false, named, 2), 0); /* nobody wants names */
    ask_names(s);
    add_page(s, 7, us, 2);
    assert_string_equal(ranged(s, &s->seat_id), "joined");
    assert_int_equal(mu_fold_name(s->fold, false, named, 2), 2);
    assert_int_equal(mu_fold_name(s->fold, false, named, 1), 1);
    assert_int_equal(mu_fold_name(s->fold, true, named, 2), 0);
    add_news(s, 7, 21, gone, 1, 0);
    assert_string_equal(changed(s, MU_FOLD_JOB), "lost");
    assert_int_equal(mu_fold_name(s->fold, true, named, 2), 1);
    assert_true(mu_slice_equal(named[0].name, mu_fold_names(s->fold)->items[0].node.name));
}

static void names_that_are_not_all_there_are_asked_for_again(void **state)
{
    static const uint64_t nobody[] = { OTHER, 0 }, other_rank[] = { ME, OTHER }, twice[] = { ME, ME };
    static const uint64_t *const bad[] = { nobody, other_rank, twice };
    struct scene *s = *state;

    ask_names(s);
    assert_string_equal(ranged(s, &s->seat_id), ""); /* none is there */
    for (size_t i = 0; i < COUNT(bad); i++) {
        assert_non_null(strstr(passes(s, MU_FOLD_RETRY_MAX_MS), "read names"));
        add_page(s, 7, bad[i], 2);
        assert_string_equal(ranged(s, &s->seat_id), "");
    }
    assert_non_null(strstr(passes(s, MU_FOLD_RETRY_MAX_MS), "read names"));
    assert_string_equal(failed(s, s->seat_id), "backend_down");
    assert_non_null(strstr(passes(s, MU_FOLD_RETRY_MAX_MS), "read names"));
    add_page(s, 7, us, 2);
    assert_string_equal(ranged(s, &s->seat_id), "backend_up, joined");
}

/* ---- Pages ---- */

/* A leader that begins, with the records of both; it has asked for the pages. */
static void ask_pages(struct scene *s)
{
    fold_round(s, us);
    add_record(s, ME, 6, 2, false, 7);
    add_record(s, OTHER, 7, 1, false, 7);
    assert_string_equal(loaded(s, MU_FOLD_NODES), "read pages");
    (void)kept(s, true);
}

static void a_read_of_pages_that_fails_is_made_again(void **state)
{
    struct scene *s = *state;

    ask_pages(s);
    assert_string_equal(failed(s, s->pages_id), "backend_down");
    assert_string_equal(passes(s, 2 * MU_FOLD_RETRY_MS), "read pages");
    assert_string_equal(paged(s), "backend_up");
}

static void a_leader_of_another_world_reads_its_pages(void **state)
{
    struct scene *s = *state;

    ask_pages(s);
    assert_string_equal(paged(s), "");
    assert_string_equal(asked(s, MU_FOLD_ON_JOIN), "progress, write record(join 7)");
    (void)wrote(s, true, 30);
    add_doc(s, 8, 31, us, 2); /* of a leader that was not heard of here */
    assert_string_equal(changed(s, MU_FOLD_JOB), "progress, read seat, read pages");
}

/* Then every member says which rank it has. */
static void a_document_whose_pages_are_broken_is_taken_away(void **state)
{
    static const uint64_t twice[] = { OTHER, OTHER };

    for (int i = 0; i < 3; i++) {
        struct scene *s = *state;

        ask_pages(s);
        if (i == 1)
            add_page(s, 7, twice, 2);
        else if (i == 2)
            assert_int_equal(
                mu_buf_assign(add(s, "member/0000000000000007/0000", 1, 1, JOB_LEASE), mu_slice_str("garbage")), 0);
        assert_string_equal(ranged(s, &s->pages_id), "write [ job/folder mod 6, job/doc mod 20] -job/doc");
        assert_string_equal(wrote(s, true, 30), "");
        (void)deleted(s, MU_FOLD_JOB, "job/doc", 30);
        assert_string_equal(s->trace, "grant job"); /* both say that they stay: it is put back */
        assert_string_equal(granted(s, 901), "write [ job/folder mod 6, job/doc absent, job/closed absent]"
                                             " page 0 job/doc job/news(gone; waiting 0; grace)");
        (void)tear_down(state);
        (void)set_up(state);
    }
}

/* What leaders left that were not able to finish. */
static void stale_worlds_are_taken_away_with_the_next_document(void **state)
{
    static const uint64_t nobody[] = { 0x55 };
    struct scene *s = *state;

    join_as_leader(s);
    add_both(s);
    add_record(s, THIRD, 8, 1, true, 0);
    assert_string_equal(loaded(s, MU_FOLD_NODES), "read pages");
    for (uint64_t world = 100; world < 105; world++)
        add_page(s, world, nobody, 1);
    add_page(s, 100, nobody, 1);
    assert_string_equal(ranged(s, &s->pages_id), "grant job");
    assert_string_equal(granted(s, 900), "write [ job/folder mod 6, job/doc absent, job/closed absent]"
                                         " page 0 seat 11=0 seat 22=1 seat 33=2 job/doc"
                                         " -seats 64 -pages 64 -seats 65 -pages 65 -seats 66 -pages 66");
}

/* ---- Worlds in batches ---- */

enum { CROWD = 20 }; /* a page, and so many seats: two batches of OPS_MIN */

static void add_crowd(struct scene *s)
{
    for (size_t i = 0; i < CROWD; i++)
        add_full_record(s, i == 0 ? ME : 0x100 + i, (int64_t)(6 + i),
                        (struct mu_fold_record){ .nodes_min = CROWD, .nodes_max = CROWD, .seq = 1, .joining = true });
}

/* A leader has so many that want in, and has written the first batch. */
static void write_first_batch(struct scene *s)
{
    join_as_leader(s);
    add_crowd(s);
    assert_string_equal(folds(s), "grant job");
    assert_string_equal(granted(s, 900), "write [ job/folder mod 6] page 0 seat 11=0 seat 101=1 seat 102=2 seat 103=3"
                                         " seat 104=4 seat 105=5 seat 106=6 seat 107=7 seat 108=8 seat 109=9"
                                         " seat 10a=10");
}

static void a_world_of_many_is_written_in_batches(void **state)
{
    struct scene *s = *state;

    write_first_batch(s);
    assert_string_equal(wrote(s, true, 30), "write [ job/folder mod 6, job/doc absent, job/closed absent]"
                                            " seat 10b=11 seat 10c=12 seat 10d=13 seat 10e=14 seat 10f=15 seat 110=16"
                                            " seat 111=17 seat 112=18 seat 113=19 job/doc");
    assert_string_equal(wrote(s, true, 31), "completed");
}

/* The document is never written without all that it takes away. */
static void a_last_batch_that_has_no_room_for_the_document_is_not_the_last(void **state)
{
    struct scene *s = *state;

    fold_round(s, (const uint64_t[]){ 0x55, 0x66 });
    (void)kept(s, true);
    add_crowd(s);
    assert_string_equal(folds(s), "write [ job/folder mod 6] page 0 seat 11=0 seat 101=1 seat 102=2 seat 103=3"
                                  " seat 104=4 seat 105=5 seat 106=6 seat 107=7 seat 108=8 seat 109=9 seat 10a=10");
    assert_string_equal(wrote(s, true, 30), "write [ job/folder mod 6, job/doc mod 20, job/closed absent]"
                                            " seat 10b=11 seat 10c=12 seat 10d=13 seat 10e=14 seat 10f=15 seat 110=16"
                                            " seat 111=17 seat 112=18 seat 113=19 job/doc -seats 7 -pages 7");
}

static void a_batch_that_does_not_hold_gives_the_world_up(void **state)
{
    struct scene *s = *state;

    write_first_batch(s);
    assert_string_equal(wrote(s, false, 30), "unwatch nodes, load job"); /* who leads is not known any more */
    add_leader(s, ME, 6, 11);
    assert_non_null(strstr(loaded(s, MU_FOLD_JOB), "leader, load nodes"));
    add_crowd(s);
    assert_string_equal(loaded(s, MU_FOLD_NODES), "read pages");
    add_page(s, 0x99, us, 2); /* what was written of it */
    assert_non_null(strstr(ranged(s, &s->pages_id), "write [ job/folder mod 6] page 0"));
    assert_non_null(strstr(wrote(s, true, 31), " job/doc -seats 99 -pages 99"));
}

static void a_batch_that_fails_gives_the_world_up(void **state)
{
    struct scene *s = *state;

    write_first_batch(s);
    assert_string_equal(failed(s, s->write_id), "backend_down, unwatch nodes");
    assert_string_equal(passes(s, 2 * MU_FOLD_RETRY_MS), "load job");
}

/* Between two of its batches. */
static void a_leader_that_is_replaced_writes_no_second_batch(void **state)
{
    struct scene *s = *state;

    write_first_batch(s);
    add_leader(s, OTHER, 40, 22);
    assert_string_equal(changed(s, MU_FOLD_JOB), "unwatch nodes");
    assert_string_equal(wrote(s, true, 30), "");
    add_leader(s, ME, 50, 11); /* and leads again: nothing is taken for written */
    assert_string_equal(changed(s, MU_FOLD_JOB), "leader, load nodes, keep job");
    add_crowd(s);
    assert_string_equal(loaded(s, MU_FOLD_NODES), "read pages");
    assert_non_null(strstr(ranged(s, &s->pages_id), "write [ job/folder mod 50] page 0 seat 11=0"));
}

/* ---- A world that only records know ---- */

static void a_world_that_more_than_half_hold_is_put_back_at_once(void **state)
{
    struct scene *s = *state;

    join_as_leader(s);
    add_holder(s, OTHER, 7, 9, 5, 2, 3);
    add_holder(s, THIRD, 8, 9, 5, 0, 3);
    assert_string_equal(find_holders(s), "write [ job/folder mod 6, job/doc absent, job/closed absent]"
                                         " page 0 job/doc job/news(gone; waiting 0; grace)");
    assert_non_null(strstr(s->doc, "\"world\":\"0000000000000009\",\"round\":5,\"nodes\":3"));
    assert_non_null(strstr(s->doc, "\"one_host\":false,\"first\":[\"host\",1,1]"));
    assert_non_null(strstr(s->page, "null"));    /* nobody knows who has rank 1 */
    assert_string_equal(wrote(s, true, 30), ""); /* it is no new round */
}

static void a_world_that_fewer_hold_is_put_back_after_a_lease(void **state)
{
    struct scene *s = *state;

    join_as_leader(s);
    add_holder(s, OTHER, 7, 9, 5, 2, 4);
    add_holder(s, THIRD, 8, 9, 5, 0, 4);
    assert_string_equal(find_holders(s), "write [ job/folder mod 6, job/doc absent] job/news(gone; waiting 0)");
    (void)wrote(s, true, 30);
    add_full_news(s, 30, &(struct mu_fold_news){ .joined = 1, .last_call_ms = -1 });
    (void)changed(s, MU_FOLD_JOB);
    assert_null(strstr(passes(s, LEASE_MS - 1), "job/doc absent,"));
    assert_non_null(strstr(passes(s, 1), "page 0 job/doc job/news(gone; waiting 0; grace)"));
}

static void the_highest_round_is_put_back_and_of_those_the_one_that_most_hold(void **state)
{
    static const struct {
        uint64_t world[2];
        int64_t round[2];
        const char *put_back;
    } rows[] = {
        { { 9, 10 }, { 5, 6 }, "000000000000000a" },
        { { 9, 10 }, { 6, 5 }, "0000000000000009" },
        { { 9, 10 }, { 5, 5 }, "000000000000000a" }, /* has two */
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct scene *s = *state;

        join_as_leader(s);
        add_holder(s, OTHER, 7, rows[i].world[0], rows[i].round[0], 0, 1);
        add_holder(s, THIRD, 8, rows[i].world[1], rows[i].round[1], 0, 2);
        add_holder(s, 0x44, 9, rows[i].world[1], rows[i].round[1], 1, 2);
        assert_non_null(strstr(find_holders(s), " job/doc job/news"));
        assert_non_null(strstr(s->doc, rows[i].put_back));
        (void)tear_down(state);
        (void)set_up(state);
    }
}

/* It has left it, or could have been in it: it is not put back into it. */
static void who_joins_gets_no_seat_in_a_world_that_is_put_back(void **state)
{
    struct scene *s = *state;

    join_as_leader(s);
    add_holder(s, OTHER, 7, 9, 5, 1, 3);
    add_holder(s, 0x44, 9, 9, 5, 2, 3);
    add_full_record(s, THIRD, 8,
                    (struct mu_fold_record){ .nodes_min = MIN, .nodes_max = 4, .seq = 1, .joining = true, .world = 9 });
    assert_string_equal(find_holders(s), "write [ job/folder mod 6, job/doc absent, job/closed absent]"
                                         " page 0 job/doc job/news(gone; waiting 0; grace)");
}

/* A leader and OTHER are in round 7; the document is gone. */
static void lose_document(struct scene *s)
{
    (void)deleted(s, MU_FOLD_JOB, "job/doc", 40);
    if (strstr(s->trace, "grant job") != NULL)
        (void)granted(s, 901);
}

/* Who leads knows more of it than records say: its members, and who is gone. */
static void a_leader_puts_its_own_world_back_with_those_who_are_gone(void **state)
{
    static const uint64_t three[] = { OTHER, ME, THIRD };
    struct scene *s = *state;

    (void)asked(s, MU_FOLD_ON_JOIN);
    add_leader(s, ME, 6, 11);
    add_doc(s, 7, 20, three, 3);
    put_record(s, 11, 21);
    (void)kept(s, true);
    add_record(s, ME, 6, 1, false, 7);
    add_record(s, OTHER, 7, 1, false, 7);
    assert_non_null(strstr(folds(s), "job/news(gone 2, 1 missing; waiting 0)"));
    (void)wrote(s, true, 30);
    add_losses(s, 7, 30, (const uint32_t[]){ 2 }, 1);
    assert_string_equal(changed(s, MU_FOLD_JOB), "lost");
    lose_document(s);
    assert_string_equal(s->trace, "write [ job/folder mod 6, job/doc absent, job/closed absent] page 0"
                                  " job/doc job/news(gone 2, 1 missing; waiting 0; grace)");
}

/* It judged while it led, and said so, perhaps at another server; the news of leaders after it say that nobody is
 * gone. */
static void who_led_before_puts_a_world_back_as_the_last_news_were(void **state)
{
    static const uint64_t three[] = { OTHER, ME, THIRD };
    struct scene *s = *state;

    (void)asked(s, MU_FOLD_ON_JOIN);
    add_leader(s, ME, 6, 11);
    add_doc(s, 7, 20, three, 3);
    put_record(s, 11, 21);
    (void)kept(s, true);
    add_record(s, ME, 6, 1, false, 7);
    add_record(s, OTHER, 7, 1, false, 7);
    assert_non_null(strstr(folds(s), "job/news(gone 2, 1 missing; waiting 0)"));
    (void)wrote(s, true, 30);
    add_losses(s, 7, 30, (const uint32_t[]){ 2 }, 1);
    (void)changed(s, MU_FOLD_JOB);
    (void)lose_lease(s);
    add_leader(s, OTHER, 40, 22);
    add_doc(s, 7, 41, three, 3);
    add_full_news(s, 41, &(struct mu_fold_news){ .world = 7, .last_call_ms = -1 });
    put_record(s, 12, 42);
    (void)lose_lease(s);
    add_leader(s, ME, 50, 13);
    put_record(s, 13, 51);
    add_record(s, ME, 50, 9, false, 7);
    add_record(s, OTHER, 52, 9, false, 7);
    add_record(s, THIRD, 53, 9, false, 7);
    s->world = 0;
    (void)folds(s);
    assert_non_null(strstr(granted(s, 901), "page 0 job/doc job/news(gone; waiting 0; grace)"));
}

/* Members that come back later, and were not known when it was put back. */
static void members_of_a_world_that_was_put_back_say_which_rank_they_have(void **state)
{
    static const uint64_t known[] = { THIRD, 0, OTHER };
    struct scene *s = *state;

    join_as_leader(s);
    add_holder(s, OTHER, 7, 9, 9, 2, 3);
    add_holder(s, THIRD, 8, 9, 9, 0, 3);
    (void)find_holders(s);
    (void)wrote(s, true, 30);
    add_doc(s, 9, 30, known, 3);
    add_full_news(s, 30, &(struct mu_fold_news){ .world = 9, .last_call_ms = -1, .grace = true });
    assert_non_null(strstr(changed(s, MU_FOLD_JOB), "job/news(gone; waiting 0; grace; 1 spare, 0 apart)"));
    (void)seated(s);
    assert_string_equal(wrote(s, true, 31), "write record(join 9)"); /* we are not in it, and have no seat there */
    (void)wrote(s, true, 31);
    add_full_news(s, 31, &(struct mu_fold_news){ .world = 9, .spares = 1, .last_call_ms = -1, .grace = true });
    (void)changed(s, MU_FOLD_JOB);
    add_holder(s, 0x44, 9, 9, 9, 1, 3);
    assert_string_equal(changed(s, MU_FOLD_NODES), "");
    assert_non_null(strstr(passes(s, LEASE_MS), "job/news(gone; waiting 0; 1 spare, 0 apart)"));
    (void)wrote(s, true, 32);
    add_full_news(s, 32, &(struct mu_fold_news){ .world = 9, .spares = 1, .last_call_ms = -1 });
    (void)changed(s, MU_FOLD_JOB);
    assert_non_null(strstr(deleted(s, MU_FOLD_NODES, "nodes/0000000000000044/0000000000000009", 50),
                           "job/news(gone 1, 1 missing; waiting 1)"));
}

/* Whoever has not come back by then is gone, known or not. */
static void members_of_a_world_that_was_put_back_have_a_lease_to_come_back(void **state)
{
    static const uint64_t known[] = { THIRD, 0, OTHER };
    struct scene *s = *state;

    join_as_leader(s);
    add_holder(s, OTHER, 7, 9, 9, 2, 3);
    add_holder(s, THIRD, 8, 9, 9, 0, 3);
    (void)find_holders(s);
    (void)wrote(s, true, 30);
    add_doc(s, 9, 30, known, 3);
    add_full_news(s, 30, &(struct mu_fold_news){ .world = 9, .spares = 1, .last_call_ms = -1, .grace = true });
    (void)changed(s, MU_FOLD_JOB);
    assert_string_equal(seated(s), "write record(join 9)");
    (void)wrote(s, true, 31);
    assert_null(strstr(passes(s, LEASE_MS - 1), "job/news"));
    assert_non_null(strstr(passes(s, 1), "job/news(gone 1, 1 missing; waiting 1)"));
    assert_string_equal(s->news.cause, "lost a node"); /* who is not known, nor how */
}

/* ---- News ---- */

/* The first that is gone ends the round; who has left since can be told with the other numbers. A loss is urgent. */
static void who_leaves_a_round_that_is_over_is_no_urgent_news(void **state)
{
    static const uint64_t three[] = { OTHER, ME, THIRD };

    for (int lost = 0; lost < 2; lost++) {
        struct scene *s = *state;

        (void)asked(s, MU_FOLD_ON_JOIN);
        add_leader(s, ME, 6, 11);
        add_doc(s, 7, 20, three, 3);
        put_record(s, 11, 21);
        (void)kept(s, true);
        add_record(s, ME, 6, 1, false, 7);
        add_record(s, OTHER, 7, 1, false, 7);
        add_record(s, THIRD, 8, 1, false, 7);
        assert_string_equal(folds(s), "");
        add_record(s, OTHER, 7, 2, true, 7);
        assert_string_equal(changed(s, MU_FOLD_NODES),
                            "write [ job/folder mod 6, job/doc mod 20] job/news(gone 0; waiting 1)");
        assert_string_equal(news_are_there(s, 7, 30, (const uint32_t[]){ 0 }, 1, 1), "lost, waiting");
        add_record(s, THIRD, 8, 2, !lost, 7);
        assert_string_equal(changed(s, MU_FOLD_NODES), "");
        assert_string_equal(deleted(s, MU_FOLD_NODES, "nodes/0000000000000033/0000000000000008", 50),
                            lost ? "write [ job/folder mod 6, job/doc mod 20] job/news(gone 0 2, 1 missing; waiting 1)"
                                 : "");
        (void)tear_down(state);
        (void)set_up(state);
    }
}

/* ---- Many ---- */

static void many_records_are_folded_at_a_slower_pace(void **state)
{
    enum { MANY = 3 * MU_FOLD_FOLDS_A_MS };
    struct scene *s = *state;
    struct mu_fold_kv *kvs = calloc(MANY, sizeof *kvs);
    char(*keys)[MU_FOLD_KEY_MAX] = calloc(MANY, sizeof *keys);
    const struct mu_fold_record record = {
        .name = "host", .nodes_min = 2, .nodes_max = 4 * MANY, .seq = 1, .joining = true, .size = 1
    };
    struct mu_buf value = { 0 };

    assert_true(kvs != NULL && keys != NULL);
    assert_int_equal(mu_fold_record_write(&record, &value), 0);
    for (size_t i = 0; i < MANY; i++) {
        (void)snprintf(keys[i], sizeof keys[i], "nodes/%016zx/%016zx", i + 0x100, i + 100);
        kvs[i] = (struct mu_fold_kv){ .key = mu_slice_str(keys[i]),
                                      .value = mu_buf_slice(&value),
                                      .create = (int64_t)i + 100,
                                      .mod = (int64_t)i + 100,
                                      .lease = (int64_t)i + 100 };
    }
    join_as_leader(s);
    (void)step(s, (struct mu_fold_event){ .type = MU_FOLD_ON_LOADED,
                                          .id = s->load_id[MU_FOLD_NODES],
                                          .scope = MU_FOLD_NODES,
                                          .kvs = kvs,
                                          .count = MANY });
    assert_string_equal(paged(s), "grant job");
    assert_string_equal(granted(s, 900), ""); /* a millisecond has not passed */
    assert_true(mu_fold_deadline_ms(s->fold) == s->now_ms + 3);
    assert_string_equal(passes(s, 2), "");
    assert_string_equal(passes(s, 1), "write [ job/folder mod 6, job/doc absent] job/news(gone; waiting 0)");
    /* And so are numbers that are news for all of them, but a joining node has not to wait for them for long. */
    (void)wrote(s, true, 9000);
    forget(s);
    add_news(s, 0, 9000, NULL, 0, 0); /* which say that nobody has joined */
    (void)changed(s, MU_FOLD_JOB);
    assert_string_equal(passes(s, MU_FOLD_NEWS_MAX_MS - 1), "look around with a mark");
    assert_string_equal(passes(s, 3), "write [ job/folder mod 6, job/doc absent] job/news(gone; waiting 0)");
    mu_buf_done(&value);
    free(keys);
    free(kvs);
}

/* ---- What none of us wrote ---- */

static const char *somebody_writes(struct scene *s, const char *key, int64_t mod, const char *value)
{
    assert_int_equal(mu_buf_assign(add(s, key, 1, mod, 0), mu_slice_str(value)), 0);
    return changed(s, strncmp(key, "job/", 4) == 0 ? MU_FOLD_JOB : MU_FOLD_NODES);
}

static void what_is_no_document_is_waited_out(void **state)
{
    static const char *const bad[] = { "garbage", "", "{}", "{\"v\": 1}", "{\"v\": 0}", "[2]" };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct scene *s = *state;

        join_beside_a_leader(s);
        assert_string_equal(somebody_writes(s, "job/doc", 20, bad[i]), "foreign");
        assert_string_equal(passes(s, LEASE_MS), "look around, write [ record mod 6] else record");
        assert_int_equal(mu_fold_phase(s->fold), MU_FOLD_JOINING);
        add_doc(s, 7, 21, us, 2);
        assert_string_equal(changed(s, MU_FOLD_JOB), "progress, read seat");
        assert_string_equal(seated(s), "joined");
        (void)tear_down(state);
        (void)set_up(state);
    }
}

static void a_leader_makes_a_world_in_place_of_what_is_no_document(void **state)
{
    struct scene *s = *state;

    join_as_leader(s);
    assert_string_equal(somebody_writes(s, "job/doc", 20, "garbage"), "foreign");
    add_both(s);
    add_record(s, THIRD, 8, 1, true, 0);
    assert_string_equal(folds(s), "grant job");
    (void)granted(s, 900);
    (void)wrote(s, true, 30); /* news */
    add_news(s, 0, 30, NULL, 0, 0);
    (void)changed(s, MU_FOLD_JOB);
    assert_non_null(strstr(passes(s, LEASE_MS), "write [ job/folder mod 6, job/doc mod 20, job/closed absent] page 0"));
}

/* As another version of muster does: under a lease. */
static const char *another_version_writes(struct scene *s, const char *key, int64_t mod, const char *value)
{
    assert_int_equal(mu_buf_assign(add(s, key, 1, mod, 8), mu_slice_str(value)), 0);
    return changed(s, MU_FOLD_JOB);
}

static void another_version_is_refused_by_name(void **state)
{
    static const struct {
        const char *key, *value, *why;
    } rows[] = {
        { "job/doc", "{\"v\": 1}",
          "the world of a round: another version of muster wrote it (its values are of version 1, ours of version 2)" },
        { "job/doc", "{\"v\": 3}",
          "the world of a round: another version of muster wrote it (its values are of version 3, ours of version 2)" },
        { "job/folder", "{\"v\": 1}",
          "the mark of a node: another version of muster wrote it (its values are of version 1, ours of version 2)" },
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct scene *s = *state;

        join_beside_a_leader(s);
        assert_string_equal(another_version_writes(s, rows[i].key, 20, rows[i].value),
                            "failed ERDZV_STATE, drop lease");
        assert_string_equal(s->why.text, rows[i].why);
        (void)tear_down(state);
        (void)set_up(state);
        s = *state;
        be_member(s);
        assert_string_equal(another_version_writes(s, rows[i].key, 30, rows[i].value),
                            "failed ERDZV_STATE, drop lease");
        assert_string_equal(s->why.text, rows[i].why);
        (void)tear_down(state);
        (void)set_up(state);
    }
}

/* Whatever it looks like: whoever leads has a lease. */
static void what_has_no_lease_is_no_other_version_s(void **state)
{
    struct scene *s = *state;

    be_member(s);
    assert_string_equal(somebody_writes(s, "job/doc", 30, "{\"v\": 1}"), "foreign, write record(stay 7)");
    assert_string_equal(wrote(s, true, 31), "");
    assert_string_equal(somebody_writes(s, "job/folder", 32, "{\"v\": 1}"), "foreign");
    assert_string_equal(passes(s, MU_FOLD_CROWN_MS * 2), "write [ job/folder mod 32] job/folder");
}

static void members_say_that_they_stay_if_there_is_no_document(void **state)
{
    struct scene *s = *state;

    be_member(s);
    assert_string_equal(somebody_writes(s, "job/doc", 30, "garbage"), "foreign, write record(stay 7)");
    assert_string_equal(wrote(s, true, 31), "");
    add_doc(s, 7, 32, us, 2); /* the leader has put it back */
    assert_string_equal(changed(s, MU_FOLD_JOB), "");
    assert_int_equal(mu_fold_phase(s->fold), MU_FOLD_MEMBER);
}

static void news_that_are_none_are_skipped_and_told_once(void **state)
{
    struct scene *s = *state;

    be_member(s);
    assert_string_equal(somebody_writes(s, "job/news", 30, "garbage"), "foreign");
    assert_string_equal(somebody_writes(s, "job/news", 30, "garbage"), "");
    assert_int_equal(mu_fold_phase(s->fold), MU_FOLD_MEMBER);
}

static void a_leaders_place_that_holds_no_mark_is_empty(void **state)
{
    struct scene *s = *state;

    be_member(s);
    assert_string_equal(somebody_writes(s, "job/folder", 30, "garbage"), "foreign");
    assert_string_equal(passes(s, MU_FOLD_CROWN_MS * 2), "write [ job/folder mod 30] job/folder");
}

static void a_leader_whose_mark_is_overwritten_leads_no_more(void **state)
{
    struct scene *s = *state;

    fold_round(s, us);
    (void)kept(s, true);
    assert_string_equal(somebody_writes(s, "job/folder", 30, "garbage"), "foreign, unwatch nodes");
    assert_false(mu_fold_is_leader(s->fold));
}

static void a_mark_of_the_end_that_is_none_ends_nothing(void **state)
{
    struct scene *s = *state;

    join_as_leader(s);
    assert_string_equal(somebody_writes(s, "job/closed", 20, "garbage"), "foreign");
    add_both(s);
    add_record(s, THIRD, 8, 1, true, 0);
    (void)folds(s);
    assert_string_equal(
        granted(s, 900),
        "write [ job/folder mod 6, job/doc absent, job/closed mod 20] page 0 seat 11=0 seat 22=1 seat 33=2 job/doc");
}

static void a_mark_of_the_end_of_another_version_counts(void **state)
{
    struct scene *s = *state;

    be_member(s);
    assert_string_equal(somebody_writes(s, "job/closed", 20, "{\"v\": 1}"), "foreign"); /* under no lease */
    assert_string_equal(another_version_writes(s, "job/closed", 21, "{\"v\": 1}"), "closed");
}

static void closing_replaces_a_mark_that_is_none(void **state)
{
    struct scene *s = *state;

    be_member(s);
    assert_string_equal(somebody_writes(s, "job/closed", 20, "garbage"), "foreign");
    assert_string_equal(asked(s, MU_FOLD_ON_CLOSE), "write [ job/closed mod 20] job/closed");
}

static void fold_two_records(struct scene *s)
{
    fold_round(s, us);
    (void)kept(s, true);
    add_record(s, ME, 6, 2, false, 7);
    add_record(s, OTHER, 7, 1, false, 7);
    (void)folds(s);
    assert_string_equal(somebody_writes(s, "nodes/0000000000000022/0000000000000007", 40, "garbage"),
                        "foreign, write [ record mod 40] record(stay 7)");
}

static void a_record_that_is_overwritten_is_put_back_by_the_leader(void **state)
{
    struct scene *s = *state;

    fold_two_records(s);
    assert_string_equal(wrote(s, true, 41), "");
}

/* A server that stood still carries out what its node has meanwhile asked of another one. */
static void a_record_of_earlier_counts_no_more(void **state)
{
    struct scene *s = *state;

    fold_round(s, us);
    (void)kept(s, true);
    add_record(s, ME, 6, 2, false, 7);
    add_record(s, OTHER, 7, 3, false, 7);
    (void)folds(s);
    add_record(s, OTHER, 7, 2, false, 5);
    assert_string_equal(changed(s, MU_FOLD_NODES), "write [ record mod 7] record(stay 7)");
    assert_string_equal(wrote(s, true, 41), "");
}

static void a_node_that_waits_puts_its_own_record_back(void **state)
{
    struct scene *s = *state;

    join_beside_a_leader(s);
    assert_string_equal(passes(s, MU_WAITERS_FIRST_MS), "look around, write [ record mod 6] else record");
    assert_string_equal(wrote(s, false, 30), ""); /* it was overwritten */
    assert_string_equal(looked(s, (struct mu_fold_event){ .count = 0 }), "");
    assert_string_equal(passes(s, 60000), "look around, write [ record mod 30] else record");
    assert_string_equal(failed(s, s->write_id), "drop lease, backend_down"); /* it is in doubt */
}

static void a_record_whose_lease_is_over_is_not_put_back(void **state)
{
    struct scene *s = *state;

    fold_two_records(s);
    assert_string_equal(lease_gone(s, s->write_id), "unwatch nodes");
    add_leader(s, ME, 6, 11);
    add_doc(s, 7, 20, us, 2);
    (void)passes(s, MU_FOLD_RETRY_MAX_MS);
    (void)loaded(s, MU_FOLD_JOB);
    add_record(s, ME, 6, 2, false, 7);
    assert_string_equal(folds(s), "write [ job/folder mod 6, job/doc mod 20] job/news(gone 0, 1 missing; waiting 0)");
}

/* Nobody would ever see its end. */
static void a_record_that_is_not_under_its_lease_is_none(void **state)
{
    struct scene *s = *state;

    join_as_leader(s);
    add_both(s);
    add_record(s, THIRD, 8, 1, true, 0);
    s->kvs[2].lease = 0;
    assert_string_equal(folds(s), "grant job");
    assert_string_equal(granted(s, 900), "write [ job/folder mod 6, job/doc absent] job/news(gone; waiting 0)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_join_reads_and_takes_a_lease_at_once),
        TEST(who_finds_a_leader_writes_its_record_only),
        TEST(a_document_that_has_us_is_joined),
        TEST(a_document_without_us_is_not),
        TEST(a_world_that_was_left_is_not_entered_again),
        TEST(a_world_that_has_us_as_gone_is_not_entered),
        TEST(a_closed_job_is_not_joined),
        TEST(that_the_job_is_closed_is_told_once_a_round),
        TEST(a_spare_of_a_closed_job_ends_well),
        TEST(who_comes_to_a_job_that_is_over_was_no_spare),
        TEST(a_wait_tells_how_many_are_in_the_round_that_runs),
        TEST(too_few_nodes_are_a_timeout),
        TEST(a_wait_that_lasts_looks_around_and_a_timeout_names_who_came),
        TEST(a_timeout_names_who_has_other_limits_or_waits_for_another_job),
        TEST(members_of_a_round_that_runs_are_not_among_those_who_wait),
        TEST(one_look_is_under_way_at_a_time),
        TEST(a_leader_that_waits_leaves_a_mark_and_takes_it_away_when_the_round_begins),
        TEST(an_etcd_that_was_never_heard_is_given_up_early),
        TEST(the_time_for_the_first_answer_ends_with_it),
        TEST(an_etcd_that_has_not_answered_is_the_cause_of_a_timeout),
        TEST(a_refusal_is_final),
        TEST(a_record_in_doubt_is_given_up_with_its_lease),
        TEST(who_had_a_record_in_doubt_judges_nobody_for_a_lease),
        TEST(a_record_that_is_refused_is_written_again_under_its_lease),
        TEST(what_is_refused_is_tried_ever_more_slowly_and_told_once),
        TEST(what_was_refused_and_is_not_wanted_any_more_is_forgotten),
        TEST(the_maximum_completes_a_round_at_once),
        TEST(the_minimum_waits_for_the_last_call),
        TEST(what_is_read_again_does_not_prolong_the_last_call),
        TEST(a_leader_of_a_new_place_begins_a_last_call_of_its_own),
        TEST(a_record_that_is_gone_is_news_at_once),
        TEST(a_record_that_says_so_has_left),
        TEST(a_newcomer_whose_limits_do_not_suit_is_left_out),
        TEST(newcomers_alone_are_waited_for),
        TEST(newcomers_wait_for_the_limits_of_whoever_is_in),
        TEST(limits_that_do_not_go_together_are_named_as_the_cause),
        TEST(news_that_count_more_than_there_are_do_no_harm),
        TEST(the_newest_record_of_a_node_counts),
        TEST(nobody_starts_anew_while_somebody_is_in),
        TEST(a_leader_that_is_not_any_more_stops_at_once),
        TEST(an_empty_place_is_taken_by_turns),
        TEST(a_place_that_is_ours_under_an_earlier_lease_is_taken_again),
        TEST(the_leader_keeps_the_lease_of_the_job),
        TEST(losses_are_told_once_and_again_when_there_are_more),
        TEST(a_round_that_is_over_when_we_see_it_is_told_as_that),
        TEST(another_world_means_that_we_were_removed),
        TEST(news_of_our_own_end_mean_it_too),
        TEST(waiting_nodes_are_told_after_the_hold_down_and_not_while_etcd_is_away),
        TEST(a_member_says_that_it_leaves_before_it_drops_its_lease),
        TEST(a_goodbye_that_fails_is_not_said_again),
        TEST(leaving_drops_the_lease_and_is_told_when_that_is_over),
        TEST(closing_is_a_key_of_its_own),
        TEST(closing_takes_a_lease_if_there_is_none_and_gives_up_in_time),
        TEST(a_look_needs_no_membership),
        TEST(a_look_while_etcd_is_away_fails_at_once),
        TEST(without_a_lease_what_was_read_is_read_again),
        TEST(a_lost_lease_is_replaced_and_the_record_says_stay),
        TEST(after_that_nobody_is_gone_for_a_lease),
        TEST(a_document_that_is_missing_is_not_put_back_by_members),
        TEST(no_first_round_is_made_while_somebody_holds_one),
        TEST(missed_changes_are_read_again),
        TEST(answers_to_nothing_are_dropped),
        TEST(memory_that_is_missing_once_is_asked_for_again),
        TEST(missing_memory_is_nobody_s_death),
        TEST(a_name_that_is_too_long_is_refused),
        TEST(what_is_no_document_is_waited_out),
        TEST(a_leader_makes_a_world_in_place_of_what_is_no_document),
        TEST(another_version_is_refused_by_name),
        TEST(what_has_no_lease_is_no_other_version_s),
        TEST(members_say_that_they_stay_if_there_is_no_document),
        TEST(news_that_are_none_are_skipped_and_told_once),
        TEST(a_leaders_place_that_holds_no_mark_is_empty),
        TEST(a_leader_whose_mark_is_overwritten_leads_no_more),
        TEST(a_mark_of_the_end_that_is_none_ends_nothing),
        TEST(a_mark_of_the_end_of_another_version_counts),
        TEST(closing_replaces_a_mark_that_is_none),
        TEST(a_record_that_is_overwritten_is_put_back_by_the_leader),
        TEST(a_record_of_earlier_counts_no_more),
        TEST(a_node_that_waits_puts_its_own_record_back),
        TEST(a_record_whose_lease_is_over_is_not_put_back),
        TEST(a_record_that_is_not_under_its_lease_is_none),
        TEST(a_seat_that_fails_is_asked_for_again),
        TEST(a_seat_of_another_world_is_none),
        TEST(an_answer_that_comes_after_the_document_has_changed_is_dropped),
        TEST(an_answer_that_comes_when_there_is_no_document_is_dropped),
        TEST(a_seat_that_none_of_us_wrote_is_left),
        TEST(names_are_known_before_the_round_is_joined),
        TEST(members_and_those_that_are_lost_are_named),
        TEST(names_that_are_not_all_there_are_asked_for_again),
        TEST(a_read_of_pages_that_fails_is_made_again),
        TEST(a_leader_of_another_world_reads_its_pages),
        TEST(a_document_whose_pages_are_broken_is_taken_away),
        TEST(stale_worlds_are_taken_away_with_the_next_document),
        TEST(a_world_of_many_is_written_in_batches),
        TEST(a_last_batch_that_has_no_room_for_the_document_is_not_the_last),
        TEST(a_batch_that_does_not_hold_gives_the_world_up),
        TEST(a_batch_that_fails_gives_the_world_up),
        TEST(a_leader_that_is_replaced_writes_no_second_batch),
        TEST(a_world_that_more_than_half_hold_is_put_back_at_once),
        TEST(a_world_that_fewer_hold_is_put_back_after_a_lease),
        TEST(the_highest_round_is_put_back_and_of_those_the_one_that_most_hold),
        TEST(who_joins_gets_no_seat_in_a_world_that_is_put_back),
        TEST(a_leader_puts_its_own_world_back_with_those_who_are_gone),
        TEST(who_led_before_puts_a_world_back_as_the_last_news_were),
        TEST(members_of_a_world_that_was_put_back_say_which_rank_they_have),
        TEST(members_of_a_world_that_was_put_back_have_a_lease_to_come_back),
        TEST(who_leaves_a_round_that_is_over_is_no_urgent_news),
        TEST(many_records_are_folded_at_a_slower_pace),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
