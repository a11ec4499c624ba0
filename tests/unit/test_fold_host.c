/* A node whose rendezvous is in a store that one of the job's nodes hosts: what it makes of the loss of that store. */
#include "fold_scene.h"

#include "rdzv/rdzv.h"

#define HOST_TEXT "node22_1_1" /* of OTHER, which has rank 0 of 2 */
#define GONE "lost node22: the store that it hosts refuses connections"

static int set_up_own_hosts(void **state)
{
    struct scene *s = calloc(1, sizeof *s);

    if (s == NULL)
        return -1;
    begin_with(
        s, MIN, MAX,
        (struct mu_fold_config){ .ops_max = MU_FOLD_OPS_MIN, .service = "the store", .endpoint = "node22:29400" });
    s->own_hosts = true;
    s->like.host = (struct mu_fold_host){ .rank = 0, .name = "node22" };
    s->like.count = 2;
    s->like.max_restarts = 3;
    *state = s;
    return 0;
}

static void be_guest(struct scene *s)
{
    assert_string_equal(met(s, HOST_TEXT, false), "");
    be_member(s);
}

/* The store can be reached again; it has none of our leases, and nothing is in it. We write our record. */
static void come_back(struct scene *s, const char *host, bool another)
{
    (void)met(s, host, another);
    (void)trouble(s, false);
    (void)failed(s, s->write_id);
    (void)passes(s, 1000);
    (void)leased(s, 12);
    (void)loaded(s, MU_FOLD_JOB);
}

static void a_member_whose_store_is_refused_has_lost_its_host(void **state)
{
    struct scene *s = *state;

    be_guest(s);
    assert_false(mu_fold_is_lost(s->fold, 0));
    assert_string_equal(store_is_gone(s), "backend_down for 30000 ms, lost: " GONE);
    assert_true(mu_fold_is_lost(s->fold, 0)); /* the host, and not we */
    assert_false(mu_fold_is_lost(s->fold, 1));
    assert_string_equal(store_is_gone(s), "");
    assert_string_equal(passes(s, 60000), "");
}

static void it_is_told_once_more_when_nobody_listens(void **state)
{
    struct scene *s = *state;

    be_guest(s);
    assert_string_equal(trouble(s, true), "backend_down for 40000 ms");
    assert_string_equal(store_is_gone(s), "backend_down for 30000 ms, lost: " GONE);
}

static void a_member_whose_store_is_silent_has_lost_its_host_after_the_lease(void **state)
{
    struct scene *s = *state;

    be_guest(s);
    assert_string_equal(trouble(s, true), "backend_down for 40000 ms");
    assert_string_equal(passes(s, LEASE_MS - 1), "");
    assert_string_equal(passes(s, 1), "lost: lost node22: the store that it hosts does not answer");
    assert_string_equal(passes(s, 60000), "");
}

static void silence_counts_from_when_the_store_was_last_heard(void **state)
{
    struct scene *s = *state;

    be_guest(s);
    s->now_ms += LEASE_MS;
    assert_string_equal(silent_for(s, LEASE_MS - 1), "backend_down for 30001 ms");
    assert_string_equal(passes(s, 1), "lost: lost node22: the store that it hosts does not answer");
}

static void after_a_long_silence_there_is_no_time_left(void **state)
{
    struct scene *s = *state;

    be_guest(s);
    s->now_ms += 600000;
    assert_string_equal(silent_for(s, 600000),
                        "backend_down for 0 ms, lost: lost node22: the store that it hosts does not answer");
}

static void a_silence_that_ends_in_time_is_no_loss(void **state)
{
    struct scene *s = *state;

    be_guest(s);
    (void)trouble(s, true);
    (void)passes(s, LEASE_MS - 1);
    assert_string_equal(trouble(s, false), "backend_up");
    assert_string_equal(passes(s, 60000), "");
}

/* Who hosts it, and what the document says of that. */
static void a_store_that_is_no_members_is_waited_for(void **state)
{
    static const struct {
        const char *host, *name;
        int rank;
    } rows[] = {
        { "", "", 0 },              /* it stands alone */
        { "node99_1_1", "", 0 },    /* a spare hosts it */
        { "host_1_1", "host", 1 },  /* we do */
        { "no node", "node22", 0 }, /* it does not say who hosts it now */
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct scene *s;

        assert_int_equal(tear_down(state), 0);
        assert_int_equal(set_up_own_hosts(state), 0);
        s = *state;
        s->like.host.rank = rows[i].rank;
        (void)snprintf(s->like.host.name, sizeof s->like.host.name, "%s", rows[i].name);
        (void)met(s, rows[i].host, false);
        be_member(s);
        assert_string_equal(store_is_gone(s), "backend_down");
        assert_string_equal(passes(s, 600000), "");
    }
}

static void a_member_that_meets_another_store_has_lost_its_host(void **state)
{
    struct scene *s = *state;

    be_guest(s);
    assert_non_null(strstr(met(s, "node99_1_1", true), "lost: lost node22: the store that it hosted is gone"));
    (void)lose_lease(s);
    (void)wrote(s, true, 21); /* under the old lease */
    assert_non_null(strstr(leased(s, 12), " record(stay 7; host lost) job/folder else record"));
    assert_int_equal(s->record.host.rank, 0);
    assert_string_equal(s->record.host.name, "node22");
}

static void a_store_that_is_no_engine_is_not_the_hosts(void **state)
{
    const struct muster_error error = { .code = MUSTER_EPROTOCOL, .text = "the store at node22:29400 has no engine" };
    struct scene *s = *state;

    be_guest(s);
    (void)step(s, (struct mu_fold_event){
                      .type = MU_FOLD_ON_LEASE_LOST, .id = s->take, .error = &error, .final = true, .refused = true });
    assert_non_null(strstr(s->trace, "lost: lost node22: the store that it hosted is gone"));
}

/* The job goes on in its document: a PyTorch node hosts that store. */
static void where_another_store_has_the_job_in_a_document_the_host_is_lost_too(void **state)
{
    const struct mu_fold_event event = { .type = MU_FOLD_ON_MET, .another = true, .moved = true };
    struct scene *s = *state;

    be_guest(s);
    assert_string_equal(step(s, event), "lost: lost node22: the store that it hosted is gone");
    assert_true(mu_fold_has_moved(s->fold));
}

/* The host has been silent for a moment only, and the job has moved at its own store. */
static void of_a_job_that_has_moved_nothing_is_due(void **state)
{
    struct mu_fold_event event = { .type = MU_FOLD_ON_MET, .host = mu_slice_str(HOST_TEXT), .moved = true };
    struct scene *s = *state;

    be_guest(s);
    (void)trouble(s, true);
    assert_non_null(strstr(step(s, event), "removed"));
    assert_true(mu_fold_deadline_ms(s->fold) == UINT64_MAX);
}

static void who_has_heard_of_the_loss_hears_nothing_more_there(void **state)
{
    const struct mu_fold_event event = { .type = MU_FOLD_ON_MET, .another = true, .moved = true };
    struct scene *s = *state;

    be_guest(s);
    (void)store_is_gone(s);
    assert_string_equal(step(s, event), "");
    assert_true(mu_fold_has_moved(s->fold));
}

static void whoever_has_left_because_of_it_says_where_it_was(void **state)
{
    struct scene *s = *state;

    be_guest(s);
    (void)store_is_gone(s);
    (void)asked(s, MU_FOLD_ON_JOIN);
    come_back(s, "", true);
    assert_true(s->record.joining && s->record.world == 7);
    assert_string_equal(s->record.host.name, "node22");
    assert_true(s->record.round == 7 && s->record.rank == 1 && s->record.nodes == 2);
    assert_true(s->record.count == 2 && s->record.max_restarts == 3);
}

static void whoever_saw_a_world_that_is_lost_says_so_too(void **state)
{
    struct scene *s = *state;

    (void)met(s, HOST_TEXT, false);
    join_beside_a_leader(s);
    add_doc(s, 7, 20, them, 2);
    (void)changed(s, MU_FOLD_JOB);
    (void)seated(s);
    come_back(s, "", true);
    assert_true(s->record.joining && s->record.world == 7 && s->record.rank == -1 && s->record.nodes == 2);
    assert_string_equal(s->record.host.name, "node22");
    (void)wrote(s, true, 30);
    add_leader(s, OTHER, 29, 22);
    add_doc(s, 8, 31, them, 2);
    assert_non_null(strstr(changed(s, MU_FOLD_JOB), " record(join 0)")); /* that one is not lost */
}

/* Revisions of two stores cannot be compared: what it said counts from when it says it to the new one. */
static void what_it_has_reported_is_reported_anew(void **state)
{
    const struct mu_part_report report = { .end = MU_PART_END_FAILED, .rank = 1, .text = "exit code 1" };
    struct scene *s = *state;

    be_guest(s);
    (void)step(s, (struct mu_fold_event){ .type = MU_FOLD_ON_REPORT, .report = &report });
    (void)wrote(s, true, 77);
    (void)asked(s, MU_FOLD_ON_JOIN);
    assert_int_equal(s->record.end.at, 77);
    come_back(s, "", true);
    assert_int_equal(s->record.end.kind, MU_FOLD_END_FAILED);
    assert_int_equal(s->record.end.at, 0);
}

/* Behind its fence it leaves the round by itself, and joins again. */
static void whoever_removed_itself_tells_of_the_lost_world_too(void **state)
{
    struct scene *s = *state;

    mu_fold_free(s->fold);
    begin_with(s, MIN, MAX, (struct mu_fold_config){ .ops_max = MU_FOLD_OPS_MIN, .fence_ms = 3000 });
    be_guest(s);
    assert_non_null(strstr(passes(s, 3000), "removed"));
    (void)asked(s, MU_FOLD_ON_JOIN);
    (void)met(s, "", true);
    assert_non_null(strstr(leased(s, 12), " record(join 7; host lost)"));
    assert_true(s->record.nodes == 2 && s->record.rank == 1 && s->record.count == 2);
}

static void the_same_store_again_has_lost_nobody(void **state)
{
    struct scene *s = *state;

    be_guest(s);
    (void)store_is_gone(s);
    (void)asked(s, MU_FOLD_ON_JOIN);
    come_back(s, HOST_TEXT, false);
    assert_true(s->record.joining && s->record.world == 7);
    assert_true(s->record.nodes == 0 && s->record.host.name[0] == '\0');
}

static void who_enters_another_world_forgets_it(void **state)
{
    struct scene *s = *state;

    be_guest(s);
    (void)store_is_gone(s);
    (void)asked(s, MU_FOLD_ON_JOIN);
    come_back(s, "", true);
    (void)wrote(s, true, 30);
    add_leader(s, OTHER, 29, 22);
    add_doc(s, 8, 31, us, 2);
    (void)changed(s, MU_FOLD_JOB);
    assert_string_equal(seated(s), "joined");
    assert_string_equal(passes(s, 60000), ""); /* though the host of this one is named as well */
}

/* ---- A join that waits for it ---- */

static void lose_and_join(struct scene *s, bool refused, uint64_t later_ms)
{
    be_guest(s);
    if (refused)
        (void)store_is_gone(s);
    else
        (void)trouble(s, true);
    (void)passes(s, later_ms);
    (void)asked(s, MU_FOLD_ON_JOIN);
}

static void a_join_fails_when_the_store_does_not_come_back(void **state)
{
    static const struct {
        bool refused;
        uint64_t later_ms, then_ms; /* when the join is asked for; after how long it fails then */
        const char *why;
    } rows[] = {
        { true, 0, 30000, "refused connections for 30 s" },
        { true, 29500, 1000, "refused connections for 30 s" }, /* it has a moment */
        { true, 40000, 1000, "refused connections for 41 s" },
        { false, 0, LEASE_MS + 30000, "not answered for 40 s" },
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct scene *s;

        assert_int_equal(tear_down(state), 0);
        assert_int_equal(set_up_own_hosts(state), 0);
        s = *state;
        lose_and_join(s, rows[i].refused, rows[i].later_ms);
        assert_null(strstr(passes(s, rows[i].then_ms - 1), "failed"));
        assert_non_null(strstr(passes(s, 1), "failed ERDZV_CONNECTION"));
        assert_non_null(strstr(s->why.text, "the store at node22:29400 is lost: its host node22 (pid 1) has "));
        assert_non_null(strstr(s->why.text, rows[i].why));
    }
}

static void a_spare_does_not_wait_long(void **state)
{
    struct scene *s = *state;

    (void)met(s, HOST_TEXT, false);
    (void)asked(s, MU_FOLD_ON_JOIN);
    add_leader(s, OTHER, 5, 22);
    add_doc(s, 7, 20, (const uint64_t[]){ OTHER, THIRD, 0x44 }, 3);
    put_record(s, 11, 21);
    (void)step(s, (struct mu_fold_event){ .type = MU_FOLD_ON_STALE, .scope = MU_FOLD_JOB });
    (void)store_is_gone(s);
    assert_null(strstr(passes(s, MU_RDZV_SURPLUS_MS - 1), "failed"));
    assert_non_null(strstr(passes(s, 1), "failed ERDZV_CONNECTION"));
    assert_non_null(strstr(s->why.text, "this node had no place in it"));
}

/* ---- The leader ---- */

/* A node that has left this world, because its store and the member of rank 0 are gone. */
static void add_survivor(struct scene *s, uint64_t id, int64_t create, int64_t rank, int64_t nodes)
{
    add_full_record(s, id, create,
                    (struct mu_fold_record){ .nodes_min = MIN,
                                             .nodes_max = MAX,
                                             .seq = 1,
                                             .joining = true,
                                             .world = 7,
                                             .round = 7,
                                             .rank = rank,
                                             .nodes = nodes,
                                             .count = 2,
                                             .max_restarts = 3,
                                             .window_s = 3600,
                                             .charges = { 100, 20 },
                                             .charges_count = 2,
                                             .crashes = 1,
                                             .host = { .rank = 0, .name = "node22" } });
}

static void the_document_names_the_member_that_hosts_the_store(void **state)
{
    struct scene *s = *state;
    struct mu_fold_world world = { .id = 0 };

    (void)met(s, HOST_TEXT, false);
    join_as_leader(s);
    add_both(s);
    (void)folds(s);
    (void)granted(s, 900);
    (void)wrote(s, true, 9);
    add_full_news(s, 9, &(struct mu_fold_news){ .joined = 2, .last_call_ms = 30000 });
    (void)changed(s, MU_FOLD_JOB);
    assert_non_null(strstr(passes(s, 60000), " job/doc"));
    assert_int_equal(mu_fold_world_read(mu_slice_str(s->doc), &world, NULL), 0);
    assert_string_equal(world.host.name, "node22");
    assert_int_equal(world.host.rank, 1); /* the second of the two */
}

static void begin_to_lead_after_the_loss(struct scene *s)
{
    (void)met(s, "node11_1_1", false);
    join_as_leader(s);
    add_record(s, ME, 6, 1, true, 0);
}

static void a_world_is_put_back_by_those_who_left_it(void **state)
{
    struct scene *s = *state;
    struct mu_fold_world world = { .id = 0 };
    char members[64];

    begin_to_lead_after_the_loss(s);
    add_survivor(s, THIRD, 7, 1, 2); /* all but the host are there: nothing is waited for */
    (void)folds(s);
    assert_non_null(strstr(granted(s, 900), "page 0 job/doc job/news(gone; waiting 0; grace)"));
    assert_string_equal(list_members(s, members), "0 33");
    assert_int_equal(mu_fold_world_read(mu_slice_str(s->doc), &world, NULL), 0);
    assert_true(world.charges_count == 2 && world.charges[0] == 100 && world.charges[1] == 20 && world.crashes == 1);
}

static void half_of_those_who_are_left_are_not_enough(void **state)
{
    struct scene *s = *state;

    begin_to_lead_after_the_loss(s);
    add_survivor(s, THIRD, 7, 1, 3);
    (void)folds(s);
    assert_null(strstr(granted(s, 900), " page 0 "));
    (void)wrote(s, true, 9);
    assert_null(strstr(passes(s, LEASE_MS - 1), " page 0 "));
}

/* A node that was not in it knows of it. */
static void while_somebody_knows_of_a_world_no_first_one_is_made(void **state)
{
    struct scene *s = *state;

    begin_to_lead_after_the_loss(s);
    add_record(s, OTHER, 7, 1, true, 0);
    add_survivor(s, THIRD, 8, -1, 2); /* with these two there are as many as there may be */
    (void)folds(s);
    assert_null(strstr(granted(s, 900), " page 0 "));
    (void)wrote(s, true, 9);
    add_full_news(s, 9, &(struct mu_fold_news){ .joined = 3, .last_call_ms = -1 });
    (void)changed(s, MU_FOLD_JOB);
    assert_null(strstr(passes(s, LEASE_MS - 1), " page 0 "));
    assert_non_null(strstr(passes(s, 1), " page 0 job/doc job/news(gone; waiting 0; grace)"));
}

static void what_is_said_of_a_lost_world_ends_with_the_next_one(void **state)
{
    struct scene *s = *state;

    be_guest(s);
    (void)store_is_gone(s);
    (void)asked(s, MU_FOLD_ON_JOIN);
    come_back(s, "node11_1_1", true);
    assert_int_equal(s->record.nodes, 2);
    (void)wrote(s, true, 30);
    add_leader(s, ME, 29, 12);
    s->like.host.name[0] = '\0';
    add_doc(s, 8, 31, (const uint64_t[]){ ME, THIRD, OTHER }, 3);
    assert_non_null(strstr(changed(s, MU_FOLD_JOB), " record(join 7)")); /* it is as before */
    assert_int_equal(s->record.nodes, 0);
    assert_string_equal(seated(s), "joined");
    (void)wrote(s, true, 32);
    add_record(s, ME, 12, 3, false, 8);
    add_survivor(s, THIRD, 7, 1, 2); /* it has not written it anew */
    assert_non_null(strstr(loaded(s, MU_FOLD_NODES), "read pages"));
    (void)paged(s);
    (void)deleted(s, MU_FOLD_JOB, "job/doc", 40);
    (void)wrote(s, true, 41);
    assert_null(strstr(passes(s, LEASE_MS), "-pages 8"));
    assert_true(mu_fold_world(s->fold) != NULL && mu_fold_world(s->fold)->id == 8);
}

/* The lost host costs nothing, and is not waited for; what the count was before is still so. */
static void the_next_world_comes_at_once_and_costs_nothing(void **state)
{
    struct scene *s = *state;
    struct mu_fold_world world = { .id = 0 };

    begin_to_lead_after_the_loss(s);
    add_survivor(s, THIRD, 7, 1, 2);
    (void)folds(s);
    (void)granted(s, 900);
    (void)wrote(s, true, 9);
    forget(s);
    s->like.host.name[0] = '\0';
    add_doc(s, 7, 9, (const uint64_t[]){ 0, THIRD }, 2);
    add_full_news(s, 9, &(struct mu_fold_news){ .world = 7, .grace = true, .last_call_ms = -1 });
    assert_non_null(strstr(changed(s, MU_FOLD_JOB), " seat 33=0 seat 11=1 job/doc"));
    assert_int_equal(mu_fold_world_read(mu_slice_str(s->doc), &world, NULL), 0);
    assert_string_equal(world.why,
                        "lost node22: the store that it hosted is gone; restarting with 2 nodes, no restart charged");
    assert_true(world.round == 8 && world.count == 2 && world.max_restarts == 3);
    assert_string_equal(world.host.name, "node11");
}

/* A survivor was cut off for a while, and its store was not lost at all. */
static void a_host_that_is_there_is_not_lost(void **state)
{
    struct scene *s = *state;

    (void)met(s, HOST_TEXT, false);
    fold_round(s, us);
    add_record(s, ME, 6, 1, false, 7);
    add_record(s, OTHER, 8, 1, false, 7);
    assert_string_equal(folds(s), "");
    (void)asked(s, MU_FOLD_ON_TIME);
    add_survivor(s, ME, 6, 1, 2);
    (void)changed(s, MU_FOLD_NODES);
    assert_null(strstr(s->trace, "missing"));
    assert_true(s->news.missing == 0);
}

#define HOST_TEST(name) cmocka_unit_test_setup_teardown(name, set_up_own_hosts, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        HOST_TEST(a_member_whose_store_is_refused_has_lost_its_host),
        HOST_TEST(it_is_told_once_more_when_nobody_listens),
        HOST_TEST(a_member_whose_store_is_silent_has_lost_its_host_after_the_lease),
        HOST_TEST(silence_counts_from_when_the_store_was_last_heard),
        HOST_TEST(after_a_long_silence_there_is_no_time_left),
        HOST_TEST(a_silence_that_ends_in_time_is_no_loss),
        HOST_TEST(a_store_that_is_no_members_is_waited_for),
        HOST_TEST(a_member_that_meets_another_store_has_lost_its_host),
        HOST_TEST(a_store_that_is_no_engine_is_not_the_hosts),
        HOST_TEST(where_another_store_has_the_job_in_a_document_the_host_is_lost_too),
        HOST_TEST(of_a_job_that_has_moved_nothing_is_due),
        HOST_TEST(who_has_heard_of_the_loss_hears_nothing_more_there),
        HOST_TEST(whoever_has_left_because_of_it_says_where_it_was),
        HOST_TEST(whoever_saw_a_world_that_is_lost_says_so_too),
        HOST_TEST(what_it_has_reported_is_reported_anew),
        HOST_TEST(whoever_removed_itself_tells_of_the_lost_world_too),
        HOST_TEST(the_same_store_again_has_lost_nobody),
        HOST_TEST(who_enters_another_world_forgets_it),
        HOST_TEST(a_join_fails_when_the_store_does_not_come_back),
        HOST_TEST(a_spare_does_not_wait_long),
        HOST_TEST(the_document_names_the_member_that_hosts_the_store),
        HOST_TEST(a_world_is_put_back_by_those_who_left_it),
        HOST_TEST(half_of_those_who_are_left_are_not_enough),
        HOST_TEST(while_somebody_knows_of_a_world_no_first_one_is_made),
        HOST_TEST(what_is_said_of_a_lost_world_ends_with_the_next_one),
        HOST_TEST(the_next_world_comes_at_once_and_costs_nothing),
        HOST_TEST(a_host_that_is_there_is_not_lost),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
