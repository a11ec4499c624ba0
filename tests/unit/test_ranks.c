/* Who is which rank: the restart count, roles and sizes in both dialects, what is wrong with others' values, and
 * trouble. */
#include "agent/ranks.h"
#include "ask_store.h"
#include "base/rng.h"
#include "failmalloc.h"
#include "pure.h"

enum { T0 = 1000, AGENTS = 1000 };

#define T "muster.job/3.00000000000000ab/"
#define LOOK "compare and set muster.job/budget=?"

static struct ask_store store;

/* ---- One agent, step by step ---- */

struct scene {
    struct mu_ranks *ranks;
    char trace[8192];
    uint64_t id; /* of the last request */
    struct mu_ranks_result result;
    struct muster_error error;
};

static struct scene scene;

static int set_up(void **state)
{
    ask_store_clear(&store);
    scene = (struct scene){ .id = 0 };
    *state = &scene;
    return 0;
}

static int tear_down(void **state)
{
    struct scene *s = *state;

    mu_ranks_free(s->ranks);
    return 0;
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

static struct mu_ranks *make(const char *role, int64_t size)
{
    struct mu_ranks_config config = { .run_id = "job", .role = role, .local_world_size = size };
    struct mu_ranks *ranks = NULL;

    assert_int_equal(mu_ranks_new(&config, &ranks, NULL), 0);
    return ranks;
}

static int show(char *text, size_t room, const struct mu_ranks_effect *e)
{
    const struct mu_ask *a = &e->ask;

    if (e->type == MU_RANKS_DO_DONE)
        return snprintf(text, room, "done %" PRId64 "/%" PRId64 " %" PRId64 "/%" PRId64 " count %" PRId64 "%s",
                        e->result->base_rank, e->result->world_size, e->result->base_role_rank,
                        e->result->role_world_size, e->result->count, e->result->shared ? "" : " own");
    if (e->type == MU_RANKS_DO_USED_UP)
        return snprintf(text, room, "used up: %s", e->text);
    if (e->type == MU_RANKS_DO_AGAIN)
        return snprintf(text, room, "again: %s", e->text);
    if (e->type == MU_RANKS_DO_WARN)
        return snprintf(text, room, "warn: %s", e->text);
    if (e->type == MU_RANKS_DO_FAIL)
        return snprintf(text, room, "fail %s: %s", muster_error_name(e->error->code), e->error->text);
    if (a->kind == MU_ASK_SET || a->kind == MU_ASK_COMPARE_SET)
        return snprintf(text, room, "%s %.*s=%.*s", mu_ask_kind_text(a->kind), (int)a->key.len, a->key.data,
                        (int)a->value.len, a->value.data);
    return snprintf(text, room, "%s %.*s", mu_ask_kind_text(a->kind), (int)a->key.len, a->key.data);
}

static const char *step(struct scene *s, struct mu_ranks_event event)
{
    struct mu_ranks_effects effects;
    size_t used = 0;

    mu_ranks_step(s->ranks, &event, &effects);
    s->trace[0] = '\0';
    for (unsigned i = 0; i < effects.count; i++) {
        used += (size_t)snprintf(s->trace + used, sizeof s->trace - used, "%s", i > 0 ? ", " : "");
        used += (size_t)show(s->trace + used, sizeof s->trace - used, &effects.items[i]);
        if (effects.items[i].type == MU_RANKS_DO_ASK)
            s->id = effects.items[i].ask.id;
        if (effects.items[i].type == MU_RANKS_DO_DONE)
            s->result = *effects.items[i].result;
        if (effects.items[i].type == MU_RANKS_DO_FAIL)
            s->error = *effects.items[i].error;
    }
    return s->trace;
}

static struct mu_round ours(int64_t round, int64_t rank, int64_t world_size)
{
    return (struct mu_round){ .round = round,
                              .tag = 0xab,
                              .rank = rank,
                              .world_size = world_size,
                              .all_ours = true,
                              .has_store = true,
                              .max_restarts = 100 };
}

static const char *start(struct scene *s, struct mu_round round)
{
    return step(s, (struct mu_ranks_event){ .type = MU_RANKS_ON_START, .now_ms = T0, .start = &round });
}

static const char *answer(struct scene *s, struct mu_answer given)
{
    return step(s, (struct mu_ranks_event){ .type = MU_RANKS_ON_ANSWER, .now_ms = T0, .answer = given });
}

static const char *value(struct scene *s, const char *text)
{
    return answer(s, (struct mu_answer){ .id = s->id, .value = mu_slice_str(text) });
}

static const char *lost(struct scene *s, uint64_t now_ms)
{
    struct muster_error error = { .code = MUSTER_ELOST, .text = "reset" };

    return step(s, (struct mu_ranks_event){
                       .type = MU_RANKS_ON_ANSWER, .now_ms = now_ms, .answer = { .id = s->id, .error = &error } });
}

static const char *pass(struct scene *s, uint64_t now_ms)
{
    return step(s, (struct mu_ranks_event){ .type = MU_RANKS_ON_TIME, .now_ms = now_ms });
}

static void rank_0_fixes_the_count_and_tells_it_with_the_ranks(void **state)
{
    struct scene *s = *state;

    s->ranks = make("default", 2);
    assert_string_equal(start(s, ours(3, 0, 2)), "get " T "role_info/1");
    assert_string_equal(value(s, "{\"role\": \"default\", \"rank\": 1, \"local_world_size\": 2, \"count\": 0}"), LOOK);
    assert_string_equal(value(s, "4 2.00000000000000cd n7"), "compare and set muster.job/budget=4 3.00000000000000ab");
    assert_string_equal(value(s, "4 3.00000000000000ab"),
                        "set " T "ranks/0=[0, 4, 0, 4, 4], set " T "ranks/1=[2, 4, 2, 4, 4]");
    assert_string_equal(answer(s, (struct mu_answer){ .id = s->id - 1 }), "");
    assert_string_equal(answer(s, (struct mu_answer){ .id = s->id }), "done 0/4 0/4 count 4");
    assert_int_equal(mu_ranks_deadline_ms(s->ranks), UINT64_MAX);
}

/* There is no other way to learn it: so there is one count, whatever becomes of the store meanwhile. */
static void the_others_are_told_their_ranks_and_the_count(void **state)
{
    struct scene *s = *state;
    struct mu_round round = ours(3, 1, 2);

    s->ranks = make("default", 2);
    round.count_min = 2;
    assert_string_equal(
        start(s, round),
        "set " T "role_info/1={\"role\": \"default\", \"rank\": 1, \"local_world_size\": 2, \"count\": 2}, get " T
        "ranks/1");
    assert_int_equal(mu_ranks_state(s->ranks), MU_RANKS_AWAITING);
    assert_string_equal(value(s, "[2, 4, 2, 4, 5]"), "done 2/4 2/4 count 5");
    assert_int_equal(mu_ranks_deadline_ms(s->ranks), UINT64_MAX);
    round.old_dialect = true; /* of nobody's concern where nobody of PyTorch looks */
    assert_non_null(strstr(start(s, round), "get " T "ranks/1"));
}

static void another_round_of_the_same_number_has_other_keys(void **state)
{
    struct scene *s = *state;
    struct mu_round round = ours(3, 1, 2);

    s->ranks = make("default", 2);
    round.tag = 0xcd;
    assert_non_null(strstr(start(s, round), "set muster.job/3.00000000000000cd/role_info/1="));
    assert_non_null(strstr(s->trace, "get muster.job/3.00000000000000cd/ranks/1"));
}

/* A store that came back empty begins to count anew. */
static void a_count_never_goes_back(void **state)
{
    struct scene *s = *state;
    struct mu_round round = ours(3, 0, 1);

    s->ranks = make("default", 2);
    round.count_min = 2;
    assert_string_equal(start(s, round), LOOK);
    assert_string_equal(value(s, "?"), "compare and set muster.job/budget=2 3.00000000000000ab");
    round = ours(3, 0, 2); /* what somebody else knows counts as well */
    (void)start(s, round);
    (void)value(s, "{\"role\": \"default\", \"rank\": 1, \"local_world_size\": 2, \"count\": 7}");
    assert_string_equal(value(s, "4 2.00000000000000cd"), "compare and set muster.job/budget=7 3.00000000000000ab");
}

static void a_budget_that_changes_meanwhile_is_taken_as_it_is_then(void **state)
{
    struct scene *s = *state;

    s->ranks = make("default", 2);
    (void)start(s, ours(3, 0, 1));
    (void)value(s, "4 2.00000000000000cd");
    assert_string_equal(value(s, "5 2.00000000000000cd n7"),
                        "compare and set muster.job/budget=5 3.00000000000000ab"); /* n7 has paid for round 2 */
    assert_string_equal(value(s, "5 2.00000000000000cd n7"),
                        "compare and set muster.job/budget=5 3.00000000000000ab"); /* what was expected: it is lost */
    assert_string_equal(value(s, "5 3.00000000000000ab"), "done 0/2 0/2 count 5");
    (void)start(s, ours(3, 0, 1)); /* other back ends say so by nothing */
    assert_string_equal(value(s, ""), "compare and set muster.job/budget=0 3.00000000000000ab");
    (void)start(s, ours(3, 0, 1));
    (void)value(s, "4 2.00000000000000cd");
    assert_string_equal(value(s, "4 4.00000000000000cd"), "again: round 4 has begun without this node");
    (void)start(s, ours(5, 0, 1)); /* so long ago that the first look finds it */
    assert_string_equal(value(s, "4 6.00000000000000cd"), "again: round 6 has begun without this node");
    assert_int_equal(mu_ranks_deadline_ms(s->ranks), UINT64_MAX);
}

/* Identical workers tell no role infos, and a job that was killed whole has no members of that round any more. */
static void a_claim_that_nobody_can_settle_does_not_end_the_job(void **state)
{
    struct scene *s = *state;
    struct mu_round round = ours(3, 0, 1);

    s->ranks = make("default", 2);
    round.max_restarts = 0;
    (void)start(s, round);
    assert_string_equal(value(s, "1 2.00000000000000cd n7"), "compare and set muster.job/budget=0 3.00000000000000ab");
    round.max_restarts = 3; /* it is charged where there is something left */
    (void)start(s, round);
    assert_string_equal(value(s, "1 2.00000000000000cd n7"), "compare and set muster.job/budget=1 3.00000000000000ab");
}

/* The last round was 7, and has put its number there. */
static void a_made_up_claim_of_an_earlier_round_is_put_back(void **state)
{
    struct scene *s = *state;
    struct mu_round round = ours(8, 0, 1);

    s->ranks = make("default", 2);
    round.max_restarts = 3;
    round.last = (struct mu_settlement){ .known = true, .round = 7, .tag = 0xee };
    (void)start(s, round);
    assert_non_null(strstr(value(s, "99 2.0000000000000000 x"),
                           "putting it back, compare and set muster.job/budget=0 8.00000000000000ab"));
}

/* It joins again for that round, and comes to one that is no later: then there was none. */
static void a_made_up_round_in_the_budget_costs_one_more_round(void **state)
{
    struct scene *s = *state;

    s->ranks = make("default", 2);
    (void)start(s, ours(3, 0, 1));
    assert_string_equal(value(s, "0 999999.0000000000000000"), "again: round 999999 has begun without this node");
    (void)start(s, ours(4, 0, 1));
    assert_string_equal(value(s, "0 999999.0000000000000000"),
                        "warn: somebody has overwritten the restart budget in 'muster.job/budget' (25 bytes: '0 "
                        "999999.0000000000000000'); putting it back, compare and set "
                        "muster.job/budget=0 4.00000000000000ab");
}

/* Rank 0 may have told us, in a store that has forgotten it since; and rank 0 does not say it twice. */
static void ranks_that_do_not_come_from_a_store_that_was_away_need_another_round(void **state)
{
    struct scene *s = *state;
    uint64_t now_ms = T0 + 1000;

    s->ranks = make("default", 2);
    (void)start(s, ours(3, 1, 2));
    (void)answer(s, (struct mu_answer){ .id = s->id - 1 });
    assert_non_null(strstr(lost(s, now_ms), "set " T "role_info/1=")); /* so may we: rank 0 may still want it */
    (void)answer(s, (struct mu_answer){ .id = s->id });
    assert_string_equal(pass(s, now_ms + MU_ASK_RETRY_MS), "get " T "ranks/1");
    (void)pass(s, now_ms + MU_RANKS_AGAIN_MS - 1);
    assert_int_equal(mu_ranks_deadline_ms(s->ranks), now_ms + MU_RANKS_AGAIN_MS);
    assert_string_equal(pass(s, now_ms + MU_RANKS_AGAIN_MS),
                        "again: the store may have forgotten the ranks of round 3");
    (void)start(s, ours(3, 1, 2)); /* in time */
    (void)lost(s, T0);
    (void)pass(s, T0 + MU_ASK_RETRY_MS);
    assert_string_equal(value(s, "[2, 4, 2, 4, 5]"), "done 2/4 2/4 count 5");
    assert_int_equal(mu_ranks_deadline_ms(s->ranks), UINT64_MAX);
}

static void with_a_stock_member_or_without_rounds_each_counts_its_own(void **state)
{
    struct scene *s = *state;
    struct mu_round round = ours(3, 1, 2);

    s->ranks = make("default", 2);
    round.all_ours = false;
    round.own_count = 7;
    assert_non_null(strstr(start(s, round), "get torch.rendezvous.job.3/torchelastic/assigned_ranks/1"));
    assert_string_equal(value(s, "[2, 4, 2, 4]"), "done 2/4 2/4 count 7 own");
    round = ours(-1, 1, 2);
    assert_string_equal(
        start(s, round),
        "set job/torchelastic/role_info/1={\"role\": \"default\", \"rank\": 1, \"local_world_size\": 2}, get "
        "job/torchelastic/assigned_ranks/1");
    assert_string_equal(value(s, "[2, 4, 2, 4]"), "done 2/4 2/4 count 0 own");
}

static void identical_workers_exchange_nothing(void **state)
{
    struct scene *s = *state;
    struct mu_ranks_config config = { .run_id = "job", .role = "r", .local_world_size = 4, .identical = true };

    assert_int_equal(mu_ranks_new(&config, &s->ranks, NULL), 0);
    assert_string_equal(start(s, ours(-1, 2, 3)), "done 8/12 8/12 count 0 own");
    assert_string_equal(start(s, ours(3, 2, 3)), "get " T "count"); /* that excepted */
    assert_string_equal(value(s, "1"), "done 8/12 8/12 count 1");
    (void)start(s, ours(3, 2, 3));
    assert_string_equal(lost(s, T0), "");
    assert_string_equal(pass(s, T0 + MU_RANKS_AGAIN_MS), "again: the store may have forgotten the ranks of round 3");
    assert_string_equal(start(s, ours(3, 0, 3)), LOOK);
    (void)value(s, "1 2.00000000000000cd");
    assert_string_equal(value(s, "1 3.00000000000000ab"), "set " T "count=1");
    assert_string_equal(answer(s, (struct mu_answer){ .id = s->id }), "done 0/12 0/12 count 1");
}

static void without_a_store_only_a_world_of_one_has_ranks(void **state)
{
    struct scene *s = *state;
    struct mu_round round = ours(0, 0, 1);

    s->ranks = make("default", 2);
    round.has_store = false;
    assert_string_equal(start(s, round), "done 0/2 0/2 count 0 own");
    round.world_size = 2;
    assert_string_equal(
        start(s, round),
        "fail ENOTSUP: assign ranks in round 0: the back end has no store in which 2 agents could do that");
    round.world_size = (int64_t)MU_RANKS_WORLD_MAX + 1;
    assert_non_null(strstr(start(s, round), "fail ELIMIT"));
}

static void rank_0_reads_all_and_tells_all(void **state)
{
    struct scene *s = *state;

    s->ranks = make("ps", 2);
    assert_string_equal(
        start(s, ours(-1, 0, 2)),
        "set job/torchelastic/role_info/0={\"role\": \"ps\", \"rank\": 0, \"local_world_size\": 2}, get "
        "job/torchelastic/role_info/1");
    assert_string_equal(answer(s, (struct mu_answer){ .id = s->id - 1 }), "");
    assert_string_equal(
        value(s, "{\"rank\": 1, \"more\": [], \"role\": \"tr\", \"local_world_size\": 3}"),
        "set job/torchelastic/assigned_ranks/0=[0, 5, 0, 2], set job/torchelastic/assigned_ranks/1=[2, 5, 0, 3]");
    assert_string_equal(answer(s, (struct mu_answer){ .id = s->id - 1 }), "");
    assert_string_equal(answer(s, (struct mu_answer){ .id = s->id }), "done 0/5 0/2 count 0 own");
}

static void a_rank_0_of_1_13_is_asked_for_the_master(void **state)
{
    struct scene *s = *state;
    struct mu_round round = ours(1, 1, 2);

    s->ranks = make("r1", 1);
    round.all_ours = false;
    round.old_dialect = round.needs_master = true;
    assert_string_equal(
        start(s, round),
        "set torch.rendezvous.job.1/torchelastic/role_info1={\"role\": \"r1\", \"rank\": 1, \"local_world_size\": "
        "1}, get torch.rendezvous.job.1/torchelastic/role_info0");
    (void)answer(s, (struct mu_answer){ .id = s->id - 1 });
    assert_string_equal(value(s, "{\"role\": \"r1\", \"rank\": 0, \"local_world_size\": 2}"),
                        "set torch.rendezvous.job.1/torchelastic/role_info1.FIN=FIN");
    assert_string_equal(answer(s, (struct mu_answer){ .id = s->id }),
                        "get torch.rendezvous.job.1/MASTER_ADDR, get torch.rendezvous.job.1/MASTER_PORT");
    assert_string_equal(value(s, "4711"), "");
    s->id--;
    assert_string_equal(value(s, "node-0.example"), "done 2/3 2/3 count 0 own");
    assert_string_equal(s->result.master_addr, "node-0.example");
    assert_int_equal(s->result.master_port, 4711);
    assert_true(s->result.count == 0 && !s->result.shared);
}

static void a_master_that_is_none_is_an_error(void **state)
{
    static const char *const bad[][2] = { { "", "1" }, { "a b", "1" }, { "a", "0" }, { "a", "65536" }, { "a", "1x" } };
    struct scene *s = *state;
    struct mu_round round = ours(1, 1, 2);

    round.old_dialect = round.needs_master = true;
    round.all_ours = false;
    s->ranks = make("r1", 1);
    for (size_t i = 0; i < COUNT(bad); i++) {
        (void)start(s, round);
        (void)answer(s, (struct mu_answer){ .id = s->id - 1 });
        (void)value(s, "{\"role\": \"r1\", \"rank\": 0, \"local_world_size\": 2}");
        (void)answer(s, (struct mu_answer){ .id = s->id });
        s->id--;
        (void)value(s, bad[i][0]);
        s->id++;
        (void)value(s, bad[i][1]);
        assert_int_equal(s->error.code, MUSTER_EPROTOCOL);
        assert_non_null(strstr(s->error.text, "MASTER_"));
        s->error.code = 0;
    }
}

/* ---- What others may write ---- */

static void role_info_of_another_shape_is_an_error_that_names_the_key(void **state)
{
    static const char *const bad[] = {
        "",
        "x",
        "[]",
        "[1, 2, 3]",
        "{}",
        "{\"role\": \"r\", \"rank\": 1}",
        "{\"role\": 3, \"rank\": 1, \"local_world_size\": 1}",
        "{\"role\": \"r\", \"rank\": \"1\", \"local_world_size\": 1}",
        "{\"role\": \"r\", \"rank\": 1, \"local_world_size\": \"1\"}",
        "{\"role\": \"r\", \"rank\": 1, \"local_world_size\": 1.0}",
        "{\"role\": \"r\", \"rank\": 1, \"local_world_size\": 0}",
        "{\"role\": \"r\", \"rank\": 1, \"local_world_size\": -1}",
        "{\"role\": \"r\", \"rank\": 1, \"local_world_size\": 1048577}",
        "{\"role\": \"r\", \"rank\": 1, \"local_world_size\": 99999999999999999999999}",
        "{\"role\": \"r\", \"rank\": 0, \"local_world_size\": 1}",
        "{\"role\": \"r\", \"rank\": 1, \"local_world_size\": 1} x",
        "{\"role\": \"r\\u0000\", \"rank\": 1, \"local_world_size\": 1}",
    };
    struct scene *s = *state;

    s->ranks = make("r", 1);
    for (size_t i = 0; i < COUNT(bad); i++) {
        (void)start(s, ours(-1, 0, 2));
        (void)value(s, bad[i]);
        assert_int_equal(s->error.code, MUSTER_EPROTOCOL);
        assert_non_null(strstr(s->error.text, "assign ranks: 'job/torchelastic/role_info/1' is "));
        assert_int_equal(mu_ranks_state(s->ranks), MU_RANKS_FAILED);
        s->error.code = 0;
    }
}

static void role_info_without_end_is_refused(void **state)
{
    static char huge[20000];
    struct scene *s = *state;

    s->ranks = make("r", 1);
    memset(huge, ' ', sizeof huge - 1);
    (void)start(s, ours(-1, 0, 2));
    assert_non_null(strstr(value(s, huge), "fail EPROTOCOL"));
}

static void assigned_ranks_of_another_shape_are_an_error_that_names_the_key(void **state)
{
    static const char *const bad[] = {
        "",
        "{}",
        "[]",
        "[0, 4, 0]",
        "[2, 4, 2, 4, 0]", /* exactly four */
        "[2, 4, 2, \"4\"]",
        "[2.0, 4, 2, 4]",
        "[2, 0, 2, 4]",
        "[2, 4, 2, 0]",
        "[2, 4, 2, 5]",
        "[3, 4, 2, 4]", /* two workers do not fit */
        "[2, 4, 3, 4]",
        "[-1, 4, 2, 4]",
        "[2, 4, -1, 4]",
        "[9223372036854775807, 4, 2, 4]",
        "[2, 9223372036854775807, 2, 9223372036854775807, 1]",
    };
    struct scene *s = *state;

    s->ranks = make("r", 2);
    for (size_t i = 0; i < COUNT(bad); i++) {
        (void)start(s, ours(-1, 1, 2));
        (void)value(s, bad[i]);
        assert_int_equal(s->error.code, MUSTER_EPROTOCOL);
        assert_non_null(strstr(s->error.text, "'job/torchelastic/assigned_ranks/1' is "));
        s->error.code = 0;
    }
}

static void what_others_of_ours_write_is_looked_at_as_closely(void **state)
{
    static const char *const budgets[] = { "-1", "1x", " 1", "1000000001 2.00000000000000ab", "1 2" };
    static const char *const ranks[] = { "[2, 4, 2, 4]", "[2, 4, 2, 4, -1]", "[2, 4, 2, 4, 1000000001]",
                                         "[2, 4, 2, 4, \"1\"]" };
    static const char *const counts[] = { "-1", "1.0", "\"1\"", "1000000001" };
    struct scene *s = *state;
    char text[128];

    s->ranks = make("r", 2);
    for (size_t i = 0; i < COUNT(budgets); i++) {
        (void)start(s, ours(3, 0, 1));
        (void)snprintf(text, sizeof text, "somebody has overwritten the restart budget in 'muster.job/budget'");
        assert_non_null(strstr(value(s, budgets[i]), text));
        assert_non_null(strstr(s->trace, "compare and set muster.job/budget=0 3.00000000000000ab"));
    }
    for (size_t i = 0; i < COUNT(ranks); i++) {
        (void)start(s, ours(3, 1, 2));
        assert_non_null(strstr(value(s, ranks[i]), "fail EPROTOCOL: assign ranks in round 3: '" T "ranks/1' is "));
    }
    for (size_t i = 0; i < COUNT(counts); i++) {
        (void)start(s, ours(3, 0, 2));
        (void)snprintf(text, sizeof text, "{\"role\": \"r\", \"rank\": 1, \"local_world_size\": 1, \"count\": %s}",
                       counts[i]);
        assert_non_null(strstr(value(s, text), "fail EPROTOCOL: assign ranks in round 3: '" T "role_info/1' is "));
    }
}

static void a_role_may_have_any_name_that_is_text(void **state)
{
    struct scene *s = *state;
    struct mu_ranks_config config = { .run_id = "job", .role = "a\"b\n\xc3\xa4", .local_world_size = 1 };
    static char long_role[MU_RANKS_ROLE_MAX + 2];
    struct muster_error error;

    assert_int_equal(mu_ranks_new(&config, &s->ranks, NULL), 0);
    assert_non_null(strstr(start(s, ours(-1, 1, 2)), "{\"role\": \"a\\\"b\\n\\u00E4\", \"rank\": 1, "));
    mu_ranks_free(s->ranks);
    s->ranks = NULL;
    memset(long_role, '\x01', MU_RANKS_ROLE_MAX); /* six bytes each, in JSON */
    config.role = long_role;
    assert_int_equal(mu_ranks_new(&config, &s->ranks, NULL), 0);
    (void)start(s, ours(-1, 1, 2));
    long_role[MU_RANKS_ROLE_MAX] = 'x';
    assert_int_equal(mu_ranks_new(&config, &(struct mu_ranks *){ NULL }, &error), MUSTER_EINVAL);
    config.role = "\xff";
    assert_int_equal(mu_ranks_new(&config, &(struct mu_ranks *){ NULL }, &error), MUSTER_EINVAL);
    config = (struct mu_ranks_config){ .run_id = "job", .role = "r" };
    assert_int_equal(mu_ranks_new(&config, &(struct mu_ranks *){ NULL }, &error), MUSTER_EINVAL);
}

/* ---- Trouble ---- */

static void a_store_that_is_away_is_asked_again_until_the_deadline(void **state)
{
    struct scene *s = *state;
    uint64_t first, now_ms = T0;

    s->ranks = make("r", 2);
    (void)start(s, ours(3, 0, 1));
    first = s->id;
    assert_string_equal(lost(s, T0), "");
    assert_int_equal(mu_ranks_deadline_ms(s->ranks), T0 + MU_ASK_RETRY_MS);
    assert_string_equal(pass(s, T0 + MU_ASK_RETRY_MS), LOOK);
    assert_true(s->id > first);
    assert_string_equal(answer(s, (struct mu_answer){ .id = first, .value = mu_slice_str("?") }), ""); /* too late */
    while (mu_ranks_deadline_ms(s->ranks) != UINT64_MAX) {
        (void)lost(s, now_ms);
        assert_true(mu_ranks_deadline_ms(s->ranks) > now_ms);
        now_ms = mu_ranks_deadline_ms(s->ranks);
        (void)pass(s, now_ms);
    }
    assert_int_equal(now_ms, T0 + MU_RANKS_TIMEOUT_MS);
    assert_string_equal(
        s->trace,
        "fail ERDZV_CONNECTION: assign ranks in round 3: read the restart budget: gave up 'muster.job/budget' after "
        "300.0 s: reset");
}

static void who_does_not_come_is_named_at_the_deadline(void **state)
{
    struct scene *s = *state;

    s->ranks = make("r", 2);
    (void)start(s, ours(-1, 0, 3));
    (void)value(s, "{\"role\": \"r\", \"rank\": 2, \"local_world_size\": 1}");
    assert_int_equal(mu_ranks_deadline_ms(s->ranks), T0 + MU_RANKS_TIMEOUT_MS);
    (void)answer(s, (struct mu_answer){ .id = s->id - 2 });
    assert_string_equal(
        pass(s, T0 + MU_RANKS_TIMEOUT_MS),
        "fail ETIMEOUT: assign ranks: read the role infos: 'job/torchelastic/role_info/1' of rank 1 was "
        "not there within 300.0 s; if a node runs PyTorch 2.3 or older, all muster nodes need the option 'dialect' "
        "with its version");
    assert_string_equal(pass(s, T0 + 2 * MU_RANKS_TIMEOUT_MS), "");
}

static void a_static_node_that_waited_for_keys_of_1_13_hears_what_for(void **state)
{
    struct scene *s = *state;
    struct mu_round old = ours(-1, 0, 2);

    old.old_dialect = true;
    s->ranks = make("r", 2);
    (void)start(s, old);
    assert_non_null(strstr(pass(s, T0 + MU_RANKS_TIMEOUT_MS), " s; all muster nodes need the same option 'dialect'"));
}

static void an_error_that_stays_ends_it(void **state)
{
    struct muster_error error = { .code = MUSTER_ENOTSUP, .text = "no such thing" };
    struct scene *s = *state;

    s->ranks = make("r", 2);
    (void)start(s, ours(3, 0, 1));
    assert_string_equal(
        answer(s, (struct mu_answer){ .id = s->id, .error = &error }),
        "fail ENOTSUP: assign ranks in round 3: read the restart budget: compare and set 'muster.job/budget': no "
        "such thing");
}

static void a_round_that_is_over_is_dropped(void **state)
{
    struct scene *s = *state;
    uint64_t old;

    s->ranks = make("r", 2);
    (void)start(s, ours(3, 0, 1));
    old = s->id;
    assert_string_equal(step(s, (struct mu_ranks_event){ .type = MU_RANKS_ON_STOP, .now_ms = T0 }), "");
    assert_string_equal(answer(s, (struct mu_answer){ .id = old }), "");
    assert_int_equal(mu_ranks_deadline_ms(s->ranks), UINT64_MAX);
    (void)start(s, ours(4, 0, 1));
    assert_string_equal(answer(s, (struct mu_answer){ .id = old }), "");
    assert_string_equal(value(s, "?"), "compare and set muster.job/budget=0 4.00000000000000ab");
}

static void any_allocation_may_fail(void **state)
{
    (void)state;
    FOR_EACH_FAILURE (n) {
        struct mu_ranks_config config = { .run_id = "job", .role = "r", .local_world_size = 2 };
        struct scene s = { .id = 0 };
        struct muster_error error = { 0 };
        int rc = mu_ranks_new(&config, &s.ranks, &error);

        if (rc < 0) {
            assert_true(fail_alloc_hit() && rc == MUSTER_ENOMEM && error.code == MUSTER_ENOMEM);
            continue;
        }
        (void)start(&s, ours(-1, 0, 2));
        if (s.error.code == 0)
            (void)value(&s, "{\"role\": \"q\", \"rank\": 1, \"local_world_size\": 1}");
        assert_int_equal(s.error.code, fail_alloc_hit() ? MUSTER_ENOMEM : 0);
        mu_ranks_free(s.ranks);
    }
}

/* ---- Many agents and one store ---- */

struct agent {
    struct mu_ranks *ranks;
    struct mu_ask asks[MU_ASKS_MAX];
    char keys[MU_ASKS_MAX][ASK_STORE_KEY], values[MU_ASKS_MAX][ASK_STORE_VALUE], expected[MU_ASKS_MAX][ASK_STORE_VALUE];
    size_t asks_count;
    unsigned effects_most;
    bool over;
    struct mu_ranks_result result;
};

static struct agent agents[AGENTS];

static void feed(struct agent *agent, struct mu_ranks_event event)
{
    struct mu_ranks_effects effects;

    event.now_ms = T0;
    mu_ranks_step(agent->ranks, &event, &effects);
    for (unsigned i = 0; i < effects.count; i++) {
        const struct mu_ranks_effect *e = &effects.items[i];

        if (e->type == MU_RANKS_DO_FAIL)
            fail_msg("%s", e->error->text);
        assert_int_not_equal(e->type, MU_RANKS_DO_AGAIN);
        assert_false(agent->over);
        if (e->type == MU_RANKS_DO_DONE) {
            agent->over = true;
            agent->result = *e->result;
            continue;
        }
        assert_true(agent->asks_count < MU_ASKS_MAX);
        memcpy(agent->keys[agent->asks_count], e->ask.key.data, e->ask.key.len);
        memcpy(agent->values[agent->asks_count], e->ask.value.data == NULL ? "" : e->ask.value.data, e->ask.value.len);
        memcpy(agent->expected[agent->asks_count], e->ask.expected.data == NULL ? "" : e->ask.expected.data,
               e->ask.expected.len);
        agent->asks[agent->asks_count] = e->ask;
        agent->asks_count++;
    }
}

/* Carries out one of its requests, any of them. False: none can be. */
static bool serve(struct agent *agent, struct mu_rng *rng)
{
    size_t first = (size_t)mu_rng_below(rng, agent->asks_count);

    for (size_t n = 0; n < agent->asks_count; n++) {
        size_t i = (first + n) % agent->asks_count;
        struct mu_ask ask = agent->asks[i];
        struct mu_answer given;

        ask.key.data = agent->keys[i];
        ask.value.data = agent->values[i];
        ask.expected.data = agent->expected[i];
        if (!ask_store_do(&store, &ask, &given))
            continue;
        agent->asks_count--;
        agent->asks[i] = agent->asks[agent->asks_count];
        memcpy(agent->keys[i], agent->keys[agent->asks_count], ASK_STORE_KEY);
        memcpy(agent->values[i], agent->values[agent->asks_count], ASK_STORE_VALUE);
        memcpy(agent->expected[i], agent->expected[agent->asks_count], ASK_STORE_VALUE);
        feed(agent, (struct mu_ranks_event){ .type = MU_RANKS_ON_ANSWER, .answer = given });
        return true;
    }
    return false;
}

struct member {
    const char *role;
    int64_t size;
};

static void run_round(const struct member *members, size_t count, struct mu_round like, struct mu_rng *rng)
{
    size_t over = 0;

    for (size_t i = 0; i < count; i++) {
        struct mu_round round = like;

        agents[i] = (struct agent){ .ranks = make(members[i].role, members[i].size) };
        round.rank = (int64_t)i;
        round.world_size = (int64_t)count;
        feed(&agents[i], (struct mu_ranks_event){ .type = MU_RANKS_ON_START, .start = &round });
    }
    for (size_t idle = 0; over < count && idle < 100 * count;) {
        struct agent *agent = &agents[mu_rng_below(rng, count)];
        bool was_over = agent->over;

        idle = serve(agent, rng) ? 0 : idle + 1;
        over += agent->over && !was_over;
    }
    assert_int_equal(over, count);
}

static void check_round(const struct member *members, size_t count)
{
    int64_t base = 0, world = 0;

    for (size_t i = 0; i < count; i++)
        world += members[i].size;
    for (size_t i = 0; i < count; i++) {
        int64_t base_role = 0, role_world = 0;

        for (size_t j = 0; j < count; j++) {
            bool same = strcmp(members[i].role, members[j].role) == 0;

            base_role += same && j < i ? members[j].size : 0;
            role_world += same ? members[j].size : 0;
        }
        assert_int_equal(agents[i].result.base_rank, base);
        assert_int_equal(agents[i].result.world_size, world);
        assert_int_equal(agents[i].result.base_role_rank, base_role);
        assert_int_equal(agents[i].result.role_world_size, role_world);
        base += members[i].size;
        mu_ranks_free(agents[i].ranks);
    }
}

/* As measured with PyTorch, in both dialects. */
static void three_agents_with_two_roles_get_the_ranks_that_pytorch_gives(void **state)
{
    static const struct member members[] = { { "ps", 2 }, { "tr", 3 }, { "ps", 1 } };
    static const int64_t wanted[3][4] = { { 0, 6, 0, 3 }, { 2, 6, 0, 3 }, { 5, 6, 2, 3 } };
    struct mu_rng rng = mu_rng_seeded(1);

    (void)state;
    for (int old_dialect = 0; old_dialect < 2; old_dialect++) {
        ask_store_clear(&store);
        run_round(members, 3, (struct mu_round){ .round = -1, .old_dialect = old_dialect, .has_store = true }, &rng);
        for (size_t i = 0; i < 3; i++) {
            assert_int_equal(agents[i].result.base_rank, wanted[i][0]);
            assert_int_equal(agents[i].result.world_size, wanted[i][1]);
            assert_int_equal(agents[i].result.base_role_rank, wanted[i][2]);
            assert_int_equal(agents[i].result.role_world_size, wanted[i][3]);
        }
        check_round(members, 3);
    }
    assert_string_equal(ask_store_get(&store, "job/torchelastic/role_info2.FIN"), "FIN");
}

static void with_a_pytorch_member_everything_is_written_as_it_writes_it(void **state)
{
    static const struct member members[] = { { "default", 2 }, { "default", 1 } };
    struct mu_round like = ours(0, 0, 1);
    struct mu_rng rng = mu_rng_seeded(1);

    (void)state;
    ask_store_clear(&store);
    like.all_ours = false;
    run_round(members, 2, like, &rng);
    check_round(members, 2);
    assert_string_equal(ask_store_get(&store, "torch.rendezvous.job.0/torchelastic/assigned_ranks/0"), "[0, 3, 0, 3]");
    assert_string_equal(ask_store_get(&store, "torch.rendezvous.job.0/torchelastic/assigned_ranks/1"), "[2, 3, 2, 3]");
    assert_string_equal(ask_store_get(&store, "torch.rendezvous.job.0/torchelastic/role_info/0"),
                        "{\"role\": \"default\", \"rank\": 0, \"local_world_size\": 2}");
    assert_null(ask_store_get(&store, "muster.job/budget"));
}

static void a_thousand_agents_are_ranked_a_window_at_a_time(void **state)
{
    static struct member members[AGENTS];
    struct mu_rng rng = mu_rng_seeded(2);

    (void)state;
    ask_store_clear(&store);
    for (size_t i = 0; i < AGENTS; i++)
        members[i] = (struct member){ i % 3 == 0 ? "a" : "b", (int64_t)(1 + i % 8) };
    run_round(members, AGENTS, ours(7, 0, 1), &rng);
    check_round(members, AGENTS);
}

/* ---- A claimed failure ---- */

#define LAST "muster.job/2.00000000000000cd/"
#define CLAIMED "5 2.00000000000000cd n7"

struct missing {
    const char *done, *note; /* "?": none */
    const char *count, *why; /* what comes of it; NULL: the failure is charged */
};

static void a_claimed_failure_is_charged_unless_a_member_of_that_round_was_lost(void **state)
{
    static const struct missing cases[] = {
        { "?", "?", "4",
          "lost n9; rank 12's failure on n3 is a consequence; restarting with 1 node, no restart charged" },
        { "?", "lost: its agent was killed", "4",
          "lost n9: its agent was killed; rank 12's failure on n3 is a consequence; restarting with 1 node, no "
          "restart charged" },
        { "done 1 n9", "?", "5", NULL },             /* done is a goodbye */
        { "?", "left: SIGTERM", "5", NULL },         /* ... and so is this */
        { "?", "again: rank 12 failed", "5", NULL }, /* was there when the round ended: a spare, or lost later */
        { "done 0 n9", "garbage", "4",               /* of another rank is none */
          "lost n9; rank 12's failure on n3 is a consequence; restarting with 1 node, no restart charged" },
    };
    struct scene *s = *state;
    struct mu_round round = ours(3, 0, 1);
    char text[512];

    s->ranks = make("default", 2);
    round.last = (struct mu_settlement){ .known = true, .round = 2, .tag = 0xcd, .failure = "rank 12's failure on n3" };
    mu_vanished_add(&round.last.missing, 1, "n9", true, false);
    for (size_t i = 0; i < COUNT(cases); i++) {
        (void)start(s, round);
        assert_string_equal(value(s, CLAIMED), "compare and set " LAST "done/1=?, compare and set " LAST "left/1=?");
        assert_int_equal(mu_ranks_state(s->ranks), MU_RANKS_SETTLING);
        assert_string_equal(answer(s, (struct mu_answer){ .id = s->id - 1, .value = mu_slice_str(cases[i].done) }), "");
        (void)snprintf(text, sizeof text, "compare and set muster.job/budget=%s 3.00000000000000ab", cases[i].count);
        assert_string_equal(value(s, cases[i].note), text);
        (void)snprintf(text, sizeof text, "%s 3.00000000000000ab", cases[i].count);
        (void)value(s, text);
        assert_string_equal(s->result.settled, cases[i].why == NULL ? "" : cases[i].why);
    }
    mu_vanished_done(&round.last.missing);
}

/* More than there is room to ask for at once, or to be named: all have said goodbye, or all but one. */
static void of_many_missing_members_all_are_judged(void **state)
{
    enum { MISSING = 40 };
    struct scene *s = *state;
    struct mu_round round = ours(3, 0, 1);
    char name[16], note[16];
    const char *asked;

    s->ranks = make("default", 2);
    round.last = (struct mu_settlement){ .known = true, .round = 2, .tag = 0xcd };
    for (int64_t rank = 1; rank <= MISSING; rank++) {
        (void)snprintf(name, sizeof name, "n%d", (int)rank);
        mu_vanished_add(&round.last.missing, rank, name, true, false);
    }
    for (int lost = 0; lost <= MISSING; lost += MISSING) {
        uint64_t next;

        (void)start(s, round);
        next = s->id + 1;
        asked = value(s, CLAIMED);
        for (int rank = 1; rank <= MISSING; rank++, next += 2) {
            (void)snprintf(note, sizeof note, "%s", rank == lost ? "?" : "left: SIGTERM");
            (void)answer(s, (struct mu_answer){ .id = next, .value = mu_slice_str("?") });
            asked = answer(s, (struct mu_answer){ .id = next + 1, .value = mu_slice_str(note) });
        }
        assert_string_equal(asked, lost == 0 ? "compare and set muster.job/budget=5 3.00000000000000ab"
                                             : "compare and set muster.job/budget=4 3.00000000000000ab");
    }
    mu_vanished_done(&round.last.missing);
}

static void a_store_that_does_not_answer_has_no_goodbye(void **state)
{
    struct muster_error error = { .code = MUSTER_ELOST, .text = "reset" };
    struct scene *s = *state;
    struct mu_round round = ours(3, 0, 1);

    s->ranks = make("default", 2);
    round.last = (struct mu_settlement){ .known = true, .round = 2, .tag = 0xcd };
    mu_vanished_add(&round.last.missing, 1, "n9", true, false);
    (void)start(s, round);
    (void)value(s, CLAIMED);
    (void)answer(s, (struct mu_answer){ .id = s->id - 1, .error = &error });
    assert_string_equal(answer(s, (struct mu_answer){ .id = s->id, .error = &error }),
                        "compare and set muster.job/budget=4 3.00000000000000ab");
    mu_vanished_done(&round.last.missing);
}

/* Rank 0 is new; what it tells to the others is what they say. */
static void a_new_rank_0_hears_from_the_others_who_is_missing(void **state)
{
    struct scene *s = *state;

    s->ranks = make("default", 1);
    (void)start(s, ours(3, 0, 2));
    (void)value(
        s, "{\"role\": \"default\", \"rank\": 1, \"local_world_size\": 1, \"count\": 4, \"last\": {\"round\": 2, "
           "\"tag\": \"00000000000000cd\", \"failure\": \"rank 1's failure on n3\", \"missing\": [[0, \"n\\\"9\"]]}}");
    assert_string_equal(value(s, CLAIMED), "compare and set " LAST "done/0=?, compare and set " LAST "left/0=?");
    (void)answer(s, (struct mu_answer){ .id = s->id - 1 });
    assert_string_equal(value(s, "?"), "compare and set muster.job/budget=4 3.00000000000000ab");
    assert_non_null(strstr(
        value(s, "4 3.00000000000000ab"),
        "set " T
        "ranks/1=[1, 2, 1, 2, 4, \"lost n\\\"9; rank 1's failure on n3 is a consequence; restarting with 2 nodes, no "
        "restart charged\"]"));
    s->ranks = (mu_ranks_free(s->ranks), make("default", 1));
    (void)start(s, ours(3, 1, 2));
    assert_string_equal(value(s, "[1, 2, 1, 2, 4, \"lost n9\\nand\"]"), "done 1/2 1/2 count 4");
    assert_string_equal(s->result.settled, "lost n9 and"); /* one line */
    (void)start(s, ours(3, 1, 2));
    assert_non_null(strstr(value(s, "[1, 2, 1, 2, 4, 5]"), "fail EPROTOCOL"));
}

/* What is not about the round in the budget says nothing, and what is no claim costs nothing. */
static void only_the_claimed_round_is_settled(void **state)
{
    struct scene *s = *state;
    struct mu_round round = ours(3, 0, 1);

    s->ranks = make("default", 2);
    round.last = (struct mu_settlement){ .known = true, .round = 2, .tag = 0xee };
    mu_vanished_add(&round.last.missing, 1, "n9", true, false);
    (void)start(s, round);
    assert_string_equal(value(s, CLAIMED), "compare and set muster.job/budget=5 3.00000000000000ab");
    round.last.tag = 0xcd;
    (void)start(s, round);
    assert_string_equal(value(s, "4 2.00000000000000cd"), "compare and set muster.job/budget=4 3.00000000000000ab");
    round.last.missing.count = 0;
    (void)start(s, round);
    assert_string_equal(value(s, CLAIMED), "compare and set muster.job/budget=5 3.00000000000000ab");
    mu_vanished_done(&round.last.missing);
}

/* The budget is lost with its store, but the members remember that they have claimed one. */
static void a_claim_outlives_the_store_that_had_it(void **state)
{
    struct scene *s = *state;
    struct mu_round round = ours(3, 0, 1);

    s->ranks = make("default", 2);
    round.count_min = 4;
    round.last = (struct mu_settlement){ .known = true, .round = 2, .tag = 0xcd, .failure = "rank 12's failure on n3" };
    (void)start(s, round);
    assert_string_equal(value(s, "?"), "compare and set muster.job/budget=5 3.00000000000000ab");
    mu_vanished_add(&round.last.missing, 1, "n9", true, false);
    (void)start(s, round);
    (void)value(s, "garbage");
    (void)answer(s, (struct mu_answer){ .id = s->id - 1 });
    assert_string_equal(value(s, "?"), "compare and set muster.job/budget=4 3.00000000000000ab");
    mu_vanished_done(&round.last.missing);
}

/* What is known of the round before by rank 0 and by the other member, and what comes of it if the store has forgotten
 * the budget. */
struct memory {
    int64_t round, count; /* -1: it was in none */
    bool claims;
};

static struct mu_round start_with(int64_t rank, struct memory memory)
{
    struct mu_round round = ours(3, rank, 2);

    round.count_min = memory.count;
    round.last = (struct mu_settlement){ .known = memory.round >= 0, .round = memory.round, .tag = 0xcd };
    if (memory.claims)
        (void)snprintf(round.last.failure, sizeof round.last.failure, "rank 12's failure on n3");
    return round;
}

/* A member that has claimed a failure may miss the round in which it is settled. Who was in that one tells of it. */
static void a_claim_that_was_settled_is_not_charged_again(void **state)
{
    static const struct {
        struct memory rank_0, other;
        const char *budget; /* what is wanted for it */
    } cases[] = {
        { { 1, 4, true }, { -1, 0, false }, "=5 3." }, /* nobody has settled it */
        { { 1, 4, true }, { 1, 4, false }, "=5 3." },
        { { 1, 4, true }, { 1, 4, true }, "=5 3." },  /* one round costs one restart */
        { { 1, 4, true }, { 2, 5, false }, "=5 3." }, /* it was charged */
        { { 1, 4, true }, { 2, 4, false }, "=4 3." }, /* it was not */
        { { 1, 4, true }, { 2, 5, true }, "=6 3." },  /* it was, and another one follows */
        { { 2, 5, false }, { 1, 4, true }, "=5 3." },
        { { 2, 4, false }, { 1, 4, true }, "=4 3." },
        { { -1, 0, false }, { 1, 4, true }, "=5 3." },
    };
    struct scene *s = *state;
    char info[1024];

    for (size_t i = 0; i < 2 * COUNT(cases); i++) {
        const char *set = "set " T "role_info/1=";
        const char *found, *end;

        s->ranks = (mu_ranks_free(s->ranks), make("default", 1));
        found = start(s, start_with(1, cases[i / 2].other));
        end = strstr(found, ", get " T);
        assert_true(strncmp(found, set, strlen(set)) == 0 && end != NULL);
        (void)snprintf(info, sizeof info, "%.*s", (int)(end - found - (ptrdiff_t)strlen(set)), found + strlen(set));
        s->ranks = (mu_ranks_free(s->ranks), make("default", 1));
        (void)start(s, start_with(0, cases[i / 2].rank_0));
        assert_string_equal(value(s, info), LOOK);
        assert_non_null(strstr(value(s, i % 2 == 0 ? "?" : "garbage"), cases[i / 2].budget));
    }
}

/* The others wait for ranks that they are never told. Should rank 0 die now, the next one finds the claim again. */
static void a_round_that_the_budget_does_not_allow_is_not_begun(void **state)
{
    struct scene *s = *state;
    struct mu_round round = ours(3, 0, 2);
    const char *info = "{\"role\": \"default\", \"rank\": 1, \"local_world_size\": 1, \"count\": 4}";

    s->ranks = make("default", 1);
    round.max_restarts = 4;
    round.last = (struct mu_settlement){ .known = true, .round = 2, .tag = 0xcd, .failure = "rank 12's failure on n3" };
    (void)start(s, round);
    (void)value(s, info);
    assert_string_equal(value(s, CLAIMED), "compare and set muster.job/budget=5 3.00000000000000ab used up");
    assert_string_equal(value(s, "5 3.00000000000000ab used up"), "used up: rank 12's failure on n3");
    assert_int_equal(mu_ranks_state(s->ranks), MU_RANKS_FAILED);
    round = ours(4, 0, 2); /* the next rank 0, which was not in that round */
    round.max_restarts = 4;
    (void)start(s, round);
    (void)value(s, info);
    assert_string_equal(value(s, "5 3.00000000000000ab used up"),
                        "compare and set muster.job/budget=5 4.00000000000000ab used up");
    assert_string_equal(value(s, "5 4.00000000000000ab used up"), "used up: ");
    round.max_restarts = 5; /* and one that is allowed */
    (void)start(s, round);
    (void)value(s, info);
    assert_string_equal(value(s, CLAIMED), "compare and set muster.job/budget=5 4.00000000000000ab");
}

/* The node that was paused, and taken for lost, is in the new round: nobody is missing. */
static void what_was_told_as_free_is_not_charged(void **state)
{
    struct scene *s = *state;
    struct mu_round round = ours(3, 0, 2);

    s->ranks = make("default", 1);
    round.max_restarts = 4;
    (void)start(s, round);
    (void)value(s, "{\"role\": \"default\", \"rank\": 1, \"local_world_size\": 1, \"count\": 4, \"last\": "
                   "{\"round\": 2, \"tag\": \"00000000000000cd\", \"failure\": \"rank 1's failure on n3\", "
                   "\"missing\": [], \"loss\": \"lost n9: no heartbeat for 5 s\"}}");
    assert_string_equal(value(s, CLAIMED), "compare and set muster.job/budget=4 3.00000000000000ab");
    (void)value(s, "4 3.00000000000000ab");
    assert_non_null(strstr(s->trace, "lost n9: no heartbeat for 5 s; rank 1's failure on n3 is a consequence; "
                                     "restarting with 2 nodes, no restart charged"));
}

/* The store was away when the worker failed; nobody is missing, and the key knows nothing of the failure. */
static void a_claim_that_did_not_reach_the_store_is_charged(void **state)
{
    struct scene *s = *state;
    struct mu_round first = start_with(0, (struct memory){ 1, 4, true });
    struct mu_restart_budget budget = { .count = 4, .round = first.last.round, .tag = first.last.tag };
    char uncharged[MU_RESTART_BUDGET_MAX];

    s->ranks = make("default", 1);
    (void)mu_restart_budget_write(uncharged, &budget, NULL);
    (void)start(s, first);
    assert_string_equal(value(s, "{\"role\": \"default\", \"rank\": 1, \"local_world_size\": 2, \"count\": 4}"), LOOK);
    assert_non_null(strstr(value(s, uncharged), "=5 3."));
}

/* Whatever the sizes, the roles and the order of answers: the same result for all, and one count. */
static void any_world_is_ranked_as_it_should_be(void **state)
{
    static const char *const roles[] = { "a", "b", "c" };
    struct mu_rng rng = mu_rng_seeded(3);

    (void)state;
    for (unsigned n = 0; n < 300; n++) {
        struct mu_round like = ours((int64_t)mu_rng_below(&rng, 3) - 1, 0, 1);
        size_t count = 1 + (size_t)mu_rng_below(&rng, 40);
        struct member members[40];
        char text[64];

        ask_store_clear(&store);
        like.old_dialect = mu_rng_below(&rng, 3) == 0;
        like.all_ours = mu_rng_below(&rng, 2) == 0;
        (void)snprintf(text, sizeof text, "%u 0.%016x", n, 1U);
        ask_store_set(&store, "muster.job/budget", text);
        for (size_t i = 0; i < count; i++)
            members[i] = (struct member){ roles[mu_rng_below(&rng, 3)], 1 + (int64_t)mu_rng_below(&rng, 9) };
        run_round(members, count, like, &rng);
        for (size_t i = 0; i < count; i++) {
            assert_int_equal(agents[i].result.shared, like.round >= 0 && like.all_ours);
            assert_int_equal(agents[i].result.count, agents[i].result.shared ? n : 0);
        }
        check_round(members, count);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCENE(rank_0_fixes_the_count_and_tells_it_with_the_ranks),
        SCENE(the_others_are_told_their_ranks_and_the_count),
        SCENE(another_round_of_the_same_number_has_other_keys),
        SCENE(a_count_never_goes_back),
        SCENE(a_budget_that_changes_meanwhile_is_taken_as_it_is_then),
        SCENE(a_claim_that_nobody_can_settle_does_not_end_the_job),
        SCENE(a_made_up_claim_of_an_earlier_round_is_put_back),
        SCENE(a_made_up_round_in_the_budget_costs_one_more_round),
        SCENE(ranks_that_do_not_come_from_a_store_that_was_away_need_another_round),
        SCENE(with_a_stock_member_or_without_rounds_each_counts_its_own),
        SCENE(identical_workers_exchange_nothing),
        SCENE(without_a_store_only_a_world_of_one_has_ranks),
        SCENE(rank_0_reads_all_and_tells_all),
        SCENE(a_rank_0_of_1_13_is_asked_for_the_master),
        SCENE(a_master_that_is_none_is_an_error),
        SCENE(role_info_of_another_shape_is_an_error_that_names_the_key),
        SCENE(role_info_without_end_is_refused),
        SCENE(assigned_ranks_of_another_shape_are_an_error_that_names_the_key),
        SCENE(what_others_of_ours_write_is_looked_at_as_closely),
        SCENE(a_role_may_have_any_name_that_is_text),
        SCENE(a_store_that_is_away_is_asked_again_until_the_deadline),
        SCENE(who_does_not_come_is_named_at_the_deadline),
        SCENE(a_static_node_that_waited_for_keys_of_1_13_hears_what_for),
        SCENE(an_error_that_stays_ends_it),
        SCENE(a_round_that_is_over_is_dropped),
        SCENE(a_claimed_failure_is_charged_unless_a_member_of_that_round_was_lost),
        SCENE(of_many_missing_members_all_are_judged),
        SCENE(a_store_that_does_not_answer_has_no_goodbye),
        SCENE(a_new_rank_0_hears_from_the_others_who_is_missing),
        SCENE(only_the_claimed_round_is_settled),
        SCENE(a_claim_outlives_the_store_that_had_it),
        SCENE(a_claim_that_was_settled_is_not_charged_again),
        SCENE(a_claim_that_did_not_reach_the_store_is_charged),
        SCENE(a_round_that_the_budget_does_not_allow_is_not_begun),
        SCENE(what_was_told_as_free_is_not_charged),
        SCENE(any_allocation_may_fail),
        cmocka_unit_test(three_agents_with_two_roles_get_the_ranks_that_pytorch_gives),
        cmocka_unit_test(with_a_pytorch_member_everything_is_written_as_it_writes_it),
        cmocka_unit_test(a_thousand_agents_are_ranked_a_window_at_a_time),
        cmocka_unit_test(any_world_is_ranked_as_it_should_be),
    };

    return cmocka_run_group_tests_name("ranks", tests, NULL, NULL);
}
