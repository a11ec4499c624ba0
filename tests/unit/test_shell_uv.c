/* The shell of a handler on a real loop, around a machine that does what the test says. */
#include "handler/shell_uv.h"
#include "pure.h"
#include "turns_uv.h"

#include <stdio.h>

static struct scene {
    struct mu_shell shell; /* first: it is the handler */
    uv_loop_t loop;
    char trace[1024]; /* what was done, in order */
    struct muster_error error;
    int64_t rank, world_size;
    char who[32];
    struct muster_store_info met;
    /* The machine. */
    bool in_world;
    uint64_t deadline_ms;
    struct mu_part_news tells[4]; /* by its next step, after `requests` */
    size_t tells_count;
    unsigned requests;
    bool no_memory;
    /* What happens when the owner is told. */
    bool frees_when_told;
    struct mu_boot_effect get; /* of the boot, that is not answered */
    char get_key[256];
    unsigned gets;
    bool found, waits;
    bool freed;
} scene;

static void note(const char *what)
{
    size_t used = strlen(scene.trace);

    (void)snprintf(scene.trace + used, sizeof scene.trace - used, "%s%s", used > 0 ? ", " : "", what);
}

/* What was done since. */
static const char *trace(void)
{
    static char text[sizeof scene.trace];

    memcpy(text, scene.trace, sizeof text);
    scene.trace[0] = '\0';
    return text;
}

/* ---- The machine ---- */

static const char *const asked[] = { "join", "leave", "close", "look", "time" };

static void part_step(void *part, enum mu_part_event_type type, const void *own, struct mu_part_now now,
                      const struct mu_part_sink *to)
{
    struct mu_part_news tells[4];
    size_t count = scene.tells_count;
    unsigned requests = scene.requests;

    assert_ptr_equal(part, &scene);
    assert_true(now.now_ms == uv_now(&scene.loop));
    note(own != NULL ? own : asked[type]);
    if (own == NULL && type == MU_PART_ON_TIME)
        scene.deadline_ms = UINT64_MAX;
    memcpy(tells, scene.tells, sizeof tells);
    scene.tells_count = 0;
    scene.requests = 0;
    for (unsigned id = 1; id <= requests; id++)
        to->request(to->ctx, &id);
    for (size_t i = 0; i < count; i++)
        to->tell(to->ctx, &tells[i]);
}

static uint64_t part_deadline_ms(const void *part)
{
    (void)part;
    return scene.deadline_ms;
}

static bool part_world(const void *part, struct mu_part_world *ret_world)
{
    static const struct mu_part_seat seat = { .base_rank = 8 };

    (void)part;
    *ret_world = (struct mu_part_world){ .round = 4, .rank = 1, .count = 2, .all_ours = true, .seat = &seat };
    return scene.in_world;
}

static struct mu_part_progress part_progress(const void *part)
{
    (void)part;
    return (struct mu_part_progress){
        .round = 4, .joined = 1, .last_call_until_ms = UINT64_MAX, .deadline_ms = uv_now(&scene.loop) + 1000
    };
}

static const char *part_phase(const void *part)
{
    (void)part;
    return "testing";
}

static void part_introduce(void *part, const struct mu_part_self *self)
{
    assert_ptr_equal(part, &scene);
    note(self->role);
}

static void part_report(void *part, const struct mu_part_report *report, struct mu_part_now now,
                        const struct mu_part_sink *to)
{
    part_step(part, MU_PART_ON_TIME, report->text, now, to);
}

static const struct mu_part_verdict *part_verdict(const void *part)
{
    static const struct mu_part_verdict failed = { .cause = "no restarts left" };

    (void)part;
    return &failed;
}

static const struct mu_part_led_ops led_ops = { part_introduce, part_report, part_verdict };

static const struct mu_part_ops part_ops = { "test",        part_step,  part_deadline_ms, part_world,
                                             part_progress, part_phase, &led_ops };

static void will_tell(struct mu_part_news news)
{
    assert_true(scene.tells_count < COUNT(scene.tells));
    if (news.round == 0)
        news.round = 4;
    news.give_up_in_ms = UINT64_MAX;
    scene.tells[scene.tells_count++] = news;
}

/* ---- The handler ---- */

static void on_request(struct mu_shell *shell, const void *effect)
{
    unsigned id = *(const unsigned *)effect;

    if (scene.no_memory) {
        mu_shell_answer_late(shell, id);
        return;
    }
    assert_non_null(mu_order_new(shell, sizeof(struct mu_order), id));
    note("request");
}

static void on_late(struct mu_shell *shell, uint64_t id)
{
    mu_shell_feed(shell, id == 1 ? "refused 1" : "refused 2");
}

static void on_start_boot(struct mu_shell *shell)
{
    note("boot");
    mu_shell_start_boot(
        shell, (struct mu_boot_start){
                   .round = 4, .rank = 1, .all_ours = true, .rank0_ours = true, .rank0 = mu_slice_str("node0") });
}

static bool local_address(const struct mu_shell *shell, char *text, size_t room)
{
    (void)shell;
    (void)snprintf(text, room, "127.0.0.1");
    return true;
}

static bool accepted_on(const struct mu_shell *shell, char *text, size_t room)
{
    (void)shell;
    (void)snprintf(text, room, "127.0.0.3");
    return true;
}

static void on_boot_request(struct mu_shell *shell, const struct mu_boot_effect *effect)
{
    (void)shell;
    assert_int_equal(effect->type, MU_BOOT_DO_GET);
    scene.get = *effect;
    scene.gets++;
}

static void answer_boot(const char *value)
{
    mu_boot_uv_answer(
        &scene.shell.boot,
        (struct mu_boot_event){ .type = MU_BOOT_ON_GOT, .id = scene.get.id, .value = mu_slice_str(value) });
}

static void on_tell(struct mu_shell *shell, struct muster_rdzv_event *event, enum mu_talk_nodes nodes,
                    const struct mu_part_news *news)
{
    assert_int_equal(nodes, mu_talk_nodes((enum mu_part_tell)event->type));
    assert_true(news != NULL || event->type == MUSTER_RDZV_JOINED || event->type == MUSTER_RDZV_WAITING);
    mu_shell_say(shell, event);
}

static void on_time(struct mu_shell *shell)
{
    note("on time");
    shell->also_ms = UINT64_MAX;
}

static void on_find(struct mu_shell *shell)
{
    const struct muster_error error = { .code = MUSTER_ERDZV_CONNECTION, .text = "nobody is there" };

    note("find");
    if (!scene.found) {
        mu_shell_not_found(shell, &error);
        return;
    }
    shell->part = &scene;
    mu_shell_found(shell);
}

static void on_last(struct mu_shell *shell)
{
    note("last");
    mu_shell_drop(shell);
}

static void on_destroy(struct mu_shell *shell)
{
    note("destroyed");
    mu_boot_uv_done(&shell->boot);
}

static const struct mu_shell_ops ops = {
    .part = &part_ops,
    .request = on_request,
    .answer = on_late,
    .start_boot = on_start_boot,
    .boot_request = on_boot_request,
    .local_address = local_address,
    .tell = on_tell,
    .on_time = on_time,
    .last = on_last,
    .destroy = on_destroy,
};

static void on_heard(struct mu_shell *shell, const struct mu_part_news *news)
{
    (void)shell;
    assert_int_equal(news->tell, MU_PART_TELL_PROGRESS);
    note("heard");
}

static void on_waits(struct mu_shell *shell, bool waits)
{
    (void)shell;
    if (waits != scene.waits)
        note(waits ? "waits" : "waits no longer");
    scene.waits = waits;
}

static struct mu_shell_ops listening; /* the same, with these two */

static struct mu_shell_ops finding; /* the same, with a back end to be found */

/* ---- The owner ---- */

static void on_freed(void *ctx)
{
    assert_ptr_equal(ctx, &scene);
    scene.freed = true;
}

static void free_handler(void)
{
    mu_shell_close(&scene.shell, on_freed, &scene);
}

static void on_event(void *ctx, const struct muster_rdzv_event *event)
{
    char text[64];

    assert_ptr_equal(ctx, &scene);
    assert_string_equal(event->self->name, "node1");
    (void)snprintf(text, sizeof text, "told %s", muster_rdzv_event_name(event->type));
    note(text);
    if (event->error != NULL)
        scene.error = *event->error;
    if (event->verdict != NULL)
        note(event->verdict->cause);
    if (event->cause != NULL)
        note(event->cause);
    assert_int_equal(event->seat != NULL ? event->seat->base_rank : 0, event->type == MUSTER_RDZV_JOINED ? 8 : 0);
    if (event->info != NULL) {
        scene.rank = event->info->rank;
        scene.world_size = event->info->world_size;
        scene.met = event->info->bootstrap;
    }
    if (event->nodes_count > 0)
        (void)snprintf(scene.who, sizeof scene.who, "%s", event->nodes[0].name);
    if (scene.frees_when_told)
        free_handler();
}

static void open_shell(const struct mu_shell_ops *with, void *part)
{
    const struct mu_boot_config boot = { .run_id = "job", .hostname = "node1", .use_agent_store = true };

    memset(&scene, 0, sizeof scene);
    assert_int_equal(uv_loop_init(&scene.loop), 0);
    scene.deadline_ms = UINT64_MAX;
    scene.shell.run_id = "job";
    scene.shell.me = (struct mu_node){ mu_slice_str("node1"), 7, 8 };
    scene.shell.nodes_min = scene.shell.nodes_max = 2;
    scene.shell.part = part;
    assert_int_equal(mu_boot_uv_init(&scene.shell.boot, &boot, NULL), 0);
    mu_shell_init(&scene.shell, &scene.loop, with, 60000, on_event, &scene);
    mu_shell_open(&scene.shell, NULL);
}

static int start(void **state)
{
    (void)state;
    open_shell(&ops, &scene);
    return 0;
}

static int start_listening(void **state)
{
    (void)state;
    listening = ops;
    listening.heard = on_heard;
    listening.waits = on_waits;
    open_shell(&listening, &scene);
    return 0;
}

static int start_without_back_end(void **state)
{
    (void)state;
    finding = ops;
    finding.find = on_find;
    open_shell(&finding, NULL);
    return 0;
}

static void turn(void)
{
    for (unsigned i = 0; i < 3; i++)
        (void)uv_run(&scene.loop, UV_RUN_NOWAIT);
}

static int end(void **state)
{
    (void)state;
    if (!scene.shell.freeing) {
        while (!mu_list_empty(&scene.shell.orders))
            mu_order_free(MU_LIST_ITEM(scene.shell.orders.next, struct mu_order, link));
        free_handler();
    }
    (void)uv_run(&scene.loop, UV_RUN_DEFAULT);
    assert_true(scene.freed);
    return uv_loop_close(&scene.loop);
}

static struct muster_handler *handler(void)
{
    return &scene.shell.handler.base;
}

/* In the round, and booting. */
static void join(void)
{
    will_tell((struct mu_part_news){ .tell = MU_PART_TELL_JOINED });
    scene.in_world = true;
    mu_handler_join(handler());
    turn();
    assert_string_equal(trace(), "join, boot");
    assert_int_equal(scene.gets, 1);
}

/* ---- Scenes ---- */

static void the_machine_is_asked_from_the_loop(void **state)
{
    (void)state;
    mu_handler_join(handler());
    mu_handler_look(handler());
    assert_string_equal(trace(), "");
    turn();
    assert_string_equal(trace(), "join, look");
}

static void requests_are_made_before_anything_is_told(void **state)
{
    (void)state;
    scene.requests = 2;
    will_tell((struct mu_part_news){ .tell = MU_PART_TELL_PROGRESS });
    mu_handler_join(handler());
    turn();
    assert_string_equal(trace(), "join, request, request, told progress");
    assert_non_null(mu_order_find(&scene.shell, 2));
    mu_order_free(mu_order_find(&scene.shell, 2));
    assert_null(mu_order_find(&scene.shell, 2));
    assert_null(mu_order_find(&scene.shell, 0));
}

static void a_round_is_told_once_its_workers_can_meet(void **state)
{
    (void)state;
    join();
    answer_boot("10.0.0.1");
    answer_boot("4711");
    assert_string_equal(trace(), "told joined");
    assert_int_equal(scene.rank, 1);
    assert_int_equal(scene.world_size, 2);
    assert_string_equal(scene.met.master_addr, "10.0.0.1");
    assert_int_equal(scene.met.master_port, 4711);
}

static void rank_0_offers_the_addresses_at_which_it_is_known(void **state)
{
    const struct mu_boot_start start = { .round = 4, .all_ours = true, .rank0_ours = true };

    (void)state;
    mu_shell_start_boot(&scene.shell, start);
    assert_string_equal(scene.shell.boot.machine.addrs[0], "127.0.0.1");
    mu_boot_uv_stop(&scene.shell.boot);
    scene.shell.accepted_on = accepted_on;
    mu_shell_start_boot(&scene.shell, start);
    assert_string_equal(scene.shell.boot.machine.addrs[0], "127.0.0.3");
    assert_string_equal(scene.shell.boot.machine.addrs[1], "127.0.0.1");
}

static void nodes_that_wait_are_told_with_the_first_name_once_the_round_is(void **state)
{
    (void)state;
    join();
    will_tell((struct mu_part_news){ .tell = MU_PART_TELL_WAITING, .count = 2, .who = "node9" });
    mu_shell_feed(&scene.shell, "news");
    assert_string_equal(trace(), "news");
    answer_boot("10.0.0.1");
    answer_boot("4711");
    assert_string_equal(trace(), "told joined, told waiting");
    assert_string_equal(scene.who, "node9");
}

static void a_request_without_memory_is_answered_when_the_step_is_over(void **state)
{
    (void)state;
    scene.no_memory = true;
    scene.requests = 2;
    will_tell((struct mu_part_news){ .tell = MU_PART_TELL_PROGRESS });
    mu_shell_feed(&scene.shell, "step");
    assert_string_equal(trace(), "step, told progress, refused 1, refused 2");
}

static void nothing_is_answered_any_more_once_the_owner_frees_the_handler(void **state)
{
    (void)state;
    scene.no_memory = scene.frees_when_told = true;
    scene.requests = 2;
    will_tell((struct mu_part_news){ .tell = MU_PART_TELL_PROGRESS });
    mu_shell_feed(&scene.shell, "step");
    assert_string_equal(trace(), "step, told progress");
}

static void time_passes_for_the_machine_and_for_the_handler(void **state)
{
    (void)state;
    scene.deadline_ms = uv_now(&scene.loop) + 1;
    mu_shell_arm(&scene.shell);
    while (scene.trace[0] == '\0')
        (void)uv_run(&scene.loop, UV_RUN_ONCE);
    assert_string_equal(trace(), "on time, time");
    scene.shell.also_ms = uv_now(&scene.loop) + 1;
    mu_shell_arm(&scene.shell);
    while (scene.trace[0] == '\0')
        (void)uv_run(&scene.loop, UV_RUN_ONCE);
    assert_string_equal(trace(), "on time, time");
    assert_int_equal(uv_run(&scene.loop, UV_RUN_NOWAIT), 0); /* and nothing is left to wait for */
}

static void a_failure_says_which_rendezvous_it_is_about(void **state)
{
    const struct muster_error error = { .code = MUSTER_ETIMEOUT, .text = "etcd does not answer" };

    (void)state;
    will_tell((struct mu_part_news){ .tell = MU_PART_TELL_FAILED, .asked = MU_PART_ON_JOIN, .error = &error });
    mu_handler_join(handler());
    turn();
    assert_string_equal(trace(), "join, told failed, no restarts left");
    assert_string_equal(scene.error.text, "join rendezvous 'job': etcd does not answer");
    assert_int_equal(scene.error.code, MUSTER_ERDZV_CONNECTION);
}

static void a_back_end_that_is_away_is_told_with_its_rendezvous(void **state)
{
    const struct muster_error error = { .code = MUSTER_ETIMEOUT, .text = "etcd does not answer" };

    (void)state;
    will_tell((struct mu_part_news){ .tell = MU_PART_TELL_BACKEND_DOWN, .error = &error });
    mu_shell_feed(&scene.shell, "step");
    assert_string_equal(trace(), "step, told backend_down");
    assert_string_equal(scene.error.text, "keep to rendezvous 'job': etcd does not answer");
}

static void what_becomes_of_the_workers_is_reported_and_what_the_leader_says_is_told(void **state)
{
    const struct mu_part_report report = { .end = MU_PART_END_FAILED, .rank = 8, .text = "exit code 1" };

    (void)state;
    mu_shell_introduce(handler(), &(struct mu_part_self){ .role = "trainer" });
    assert_string_equal(trace(), "trainer");
    join();
    answer_boot("10.0.0.1");
    answer_boot("4711");
    assert_string_equal(trace(), "told joined");
    will_tell((struct mu_part_news){ .tell = MU_PART_TELL_REPORTED });
    mu_shell_report(handler(), &report);
    assert_string_equal(trace(), "");
    turn();
    assert_string_equal(trace(), "exit code 1, told reported");
    will_tell((struct mu_part_news){ .tell = MU_PART_TELL_LOST, .cause = "rank 8 failed on node1" });
    will_tell((struct mu_part_news){ .tell = MU_PART_TELL_CLOSED });
    mu_shell_feed(&scene.shell, "news");
    assert_string_equal(trace(), "news, told peers_lost, rank 8 failed on node1, told closed, no restarts left");
}

static void a_foreign_value_is_nothing_for_the_owner(void **state)
{
    const struct muster_error error = { .code = MUSTER_ERDZV_STATE, .text = "a key was overwritten" };

    (void)state;
    will_tell((struct mu_part_news){ .tell = MU_PART_TELL_FOREIGN, .error = &error });
    mu_shell_feed(&scene.shell, "step");
    assert_string_equal(trace(), "step");
}

static void nothing_is_told_after_the_owner_has_freed_it(void **state)
{
    (void)state;
    scene.frees_when_told = true;
    will_tell((struct mu_part_news){ .tell = MU_PART_TELL_BACKEND_UP });
    will_tell((struct mu_part_news){ .tell = MU_PART_TELL_BACKEND_UP });
    mu_shell_feed(&scene.shell, "step");
    assert_string_equal(trace(), "step, told backend_up");
    mu_shell_feed(&scene.shell, "late"); /* answers may come yet */
    (void)uv_run(&scene.loop, UV_RUN_DEFAULT);
    assert_string_equal(trace(), "last, destroyed");
}

static void it_goes_when_all_that_it_holds_is_dropped(void **state)
{
    (void)state;
    mu_shell_hold(&scene.shell);
    free_handler();
    turn();
    assert_string_equal(trace(), "");
    mu_shell_drop(&scene.shell);
    assert_string_equal(trace(), "last, destroyed");
    assert_true(scene.freed);
}

static void without_a_back_end_what_is_asked_fails_and_the_next_ask_looks_again(void **state)
{
    (void)state;
    mu_handler_join(handler());
    turn();
    assert_string_equal(trace(), "find, told failed");
    assert_string_equal(scene.error.text, "join rendezvous 'job': nobody is there");
    scene.found = true;
    mu_handler_look(handler());
    turn();
    assert_string_equal(trace(), "find, look");
}

static void the_handler_hears_what_the_machine_tells_and_whether_the_owner_waits(void **state)
{
    (void)state;
    mu_handler_join(handler());
    turn();
    assert_string_equal(trace(), "waits, join");
    mu_shell_tell_progress(&scene.shell);
    assert_string_equal(trace(), "heard, told progress");
    mu_handler_leave(handler());
    turn();
    assert_string_equal(trace(), "waits no longer, leave");
}

int main(void)
{
#define SCENE(scene) cmocka_unit_test_setup_teardown(scene, start, end)
    const struct CMUnitTest tests[] = {
        SCENE(the_machine_is_asked_from_the_loop),
        SCENE(requests_are_made_before_anything_is_told),
        SCENE(a_round_is_told_once_its_workers_can_meet),
        SCENE(rank_0_offers_the_addresses_at_which_it_is_known),
        SCENE(nodes_that_wait_are_told_with_the_first_name_once_the_round_is),
        SCENE(a_request_without_memory_is_answered_when_the_step_is_over),
        SCENE(nothing_is_answered_any_more_once_the_owner_frees_the_handler),
        SCENE(time_passes_for_the_machine_and_for_the_handler),
        SCENE(a_failure_says_which_rendezvous_it_is_about),
        SCENE(a_back_end_that_is_away_is_told_with_its_rendezvous),
        SCENE(a_foreign_value_is_nothing_for_the_owner),
        SCENE(what_becomes_of_the_workers_is_reported_and_what_the_leader_says_is_told),
        SCENE(nothing_is_told_after_the_owner_has_freed_it),
        SCENE(it_goes_when_all_that_it_holds_is_dropped),
        cmocka_unit_test_setup_teardown(the_handler_hears_what_the_machine_tells_and_whether_the_owner_waits,
                                        start_listening, end),
        cmocka_unit_test_setup_teardown(without_a_back_end_what_is_asked_fails_and_the_next_ask_looks_again,
                                        start_without_back_end, end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
