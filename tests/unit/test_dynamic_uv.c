/* The dynamic rendezvous on a real loop, on a back end whose document the test writes: rounds that end before the owner
 * has heard of them. */
#include "handler/handler.h"
#include "kv/kv.h"
#include "kv/later_uv.h"
#include "pure.h"
#include "rdzv/pickle.h"
#include "turns_uv.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { JOIN_MS = 5000, HELD_MAX = 8 };

/* A back end with a bell. What is asked for with GET never comes: a member that is not rank 0 boots for as long as the
 * test wants. */
static struct back_end {
    struct mu_kv kv;
    struct mu_later later;
    struct mu_buf bytes; /* the document */
    int64_t token, bell;
    struct mu_kv_request *parked, *gets[HELD_MAX];
    size_t gets_count;
    bool holds_writes;
    struct mu_kv_request *write; /* that is held */
    mu_kv_closed *on_closed;
    void *ctx;
} back_end;

static struct scene {
    uv_loop_t loop;
    struct muster_handler *handler;
    struct mu_doc doc; /* as it is */
    /* Told. */
    unsigned joined, waiting, lost, removed, failed, left;
    struct muster_error why;
    bool in_when_failed; /* the document still had us when the failure was told */
    bool freed;
} scene;

/* ---- The back end ---- */

static void give(struct muster_bytes *to, struct mu_slice bytes)
{
    to->data = malloc(bytes.len + 1);
    assert_non_null(to->data);
    memcpy(to->data, bytes.data, bytes.len);
    to->len = bytes.len;
}

static void give_document(struct mu_kv_request *request)
{
    char token[32];

    request->found = back_end.token > 0;
    if (!request->found)
        return;
    (void)snprintf(token, sizeof token, "%lld", (long long)back_end.token);
    give(&request->state_token, mu_slice_str(token));
    if (!request->written)
        give(&request->bytes, mu_buf_slice(&back_end.bytes));
}

static bool is_newest(const struct mu_kv_request *request)
{
    char token[32];

    (void)snprintf(token, sizeof token, "%lld", (long long)back_end.token);
    return request->has_token ? mu_slice_equal(mu_slice(request->token.data, request->token.len), mu_slice_str(token))
                              : back_end.token == 0;
}

static void decode(void)
{
    assert_int_equal(mu_pickle_decode(mu_buf_slice(&back_end.bytes), &scene.doc, NULL), 0);
}

static void ring(void)
{
    back_end.bell++;
    if (back_end.parked != NULL) {
        back_end.parked->number = back_end.bell;
        mu_later_push(&back_end.later, &back_end.parked->link);
    }
    back_end.parked = NULL;
}

static void answer_write(struct mu_kv_request *request)
{
    request->written = is_newest(request);
    if (request->written) {
        assert_int_equal(mu_buf_assign(&back_end.bytes, mu_slice(request->value.data, request->value.len)), 0);
        back_end.token++;
        decode();
    }
    give_document(request);
    mu_later_push(&back_end.later, &request->link);
}

static void on_submit(struct mu_kv *kv, struct mu_kv_request *request)
{
    (void)kv;
    mu_kv_begin(request, uv_now(&scene.loop));
    switch (request->kind) {
    case MU_KV_PARK:
        if (back_end.parked != NULL) { /* a new one ends the old one */
            back_end.parked->rc = mu_fail(&back_end.parked->error, MUSTER_ECANCELED, "parked anew");
            mu_later_push(&back_end.later, &back_end.parked->link);
        }
        back_end.parked = request;
        if (back_end.bell > request->number)
            ring();
        return;
    case MU_KV_GET:
        assert_true(back_end.gets_count < HELD_MAX);
        back_end.gets[back_end.gets_count++] = request;
        return;
    case MU_KV_WRITE:
        if (back_end.holds_writes)
            back_end.write = request;
        else
            answer_write(request);
        return;
    case MU_KV_READ:
        give_document(request);
        request->number = back_end.bell;
        break;
    case MU_KV_RING:
        ring();
        break;
    default:
        break;
    }
    mu_later_push(&back_end.later, &request->link);
}

static void on_later_closed(void *ctx)
{
    (void)ctx;
    back_end.on_closed(&back_end.kv, back_end.ctx);
}

static void cancel(struct mu_kv_request *request)
{
    request->rc = mu_fail(&request->error, MUSTER_ECANCELED, "closed");
    mu_later_push(&back_end.later, &request->link);
}

static void on_close(struct mu_kv *kv, mu_kv_closed *closed, void *ctx)
{
    (void)kv;
    back_end.on_closed = closed;
    back_end.ctx = ctx;
    if (back_end.parked != NULL)
        cancel(back_end.parked);
    for (size_t i = 0; i < back_end.gets_count; i++)
        cancel(back_end.gets[i]);
    mu_later_close(&back_end.later, on_later_closed, NULL);
}

static const struct mu_kv_ops ops = { .name = "test", .has_bell = true, .submit = on_submit, .close = on_close };

/* ---- The handler ---- */

static const struct mu_node me = { { "me", 2 }, 0, 0x4d100001 };   /* its pid is ours */
static const struct mu_node first = { { "a", 1 }, 1, 0x4d100002 }; /* comes before us: rank 0 */
static const struct mu_node newcomer = { { "newcomer", 8 }, 1, 0x4d100003 };

static struct mu_doc_member *find_me(void)
{
    struct mu_node node = me;

    node.pid = getpid();
    return mu_doc_find(&scene.doc, &node);
}

static bool is_in(unsigned in)
{
    const struct mu_doc_member *member = find_me();

    return member != NULL && (member->in & in) != 0;
}

static void on_event(void *ctx, const struct muster_rdzv_event *event)
{
    (void)ctx;
    scene.joined += event->type == MUSTER_RDZV_JOINED;
    scene.waiting += event->type == MUSTER_RDZV_WAITING;
    scene.lost += event->type == MUSTER_RDZV_PEERS_LOST;
    scene.removed += event->type == MUSTER_RDZV_REMOVED;
    scene.failed += event->type == MUSTER_RDZV_FAILED;
    scene.left += event->type == MUSTER_RDZV_LEFT;
    if (event->type != MUSTER_RDZV_FAILED)
        return;
    scene.why = *event->error;
    scene.in_when_failed = is_in(MU_DOC_PARTICIPANT);
}

static void on_freed(void *ctx)
{
    (void)ctx;
    scene.freed = true;
}

static int start_scene(void **state)
{
    struct mu_dynamic_config config = { .backend = "test",
                                        .run_id = "job",
                                        .local_addr = "me",
                                        .settings = MU_RDZV_SETTINGS_DEFAULT,
                                        .dialect = MU_DOC_DIALECT_2_X,
                                        .local_id = me.local_id,
                                        .use_agent_store = true,
                                        .request_timeout_ms = 10000 };

    (void)state;
    scene = (struct scene){ .freed = false };
    back_end = (struct back_end){ .kv = { .ops = &ops } };
    mu_doc_init(&scene.doc, (struct mu_hash_seed){ 1, 2 }, MU_DOC_DIALECT_2_X);
    assert_int_equal(uv_loop_init(&scene.loop), 0);
    mu_later_open(&back_end.later, &scene.loop, mu_kv_tell);
    config.settings.nodes_min = config.settings.nodes_max = 2;
    config.settings.join_ms = JOIN_MS;
    return mu_dynamic_start(&scene.loop, &config, &back_end.kv, on_event, NULL, &scene.handler, NULL);
}

static int end_scene(void **state)
{
    (void)state;
    scene.handler->ops->free(scene.handler, on_freed, NULL);
    (void)uv_run(&scene.loop, UV_RUN_DEFAULT);
    assert_true(scene.freed);
    assert_int_equal(uv_loop_close(&scene.loop), 0);
    mu_buf_done(&back_end.bytes);
    mu_doc_done(&scene.doc);
    return 0;
}

#define UNTIL(condition) UNTIL_OF(&scene.loop, condition)

/* ---- The others, who write the document as well ---- */

static void enter(const struct mu_node *node, unsigned in)
{
    struct mu_doc_member *member = mu_doc_enter(&scene.doc, node, in | MU_DOC_HEARTBEAT);

    assert_non_null(member);
    member->heartbeat_us = (int64_t)time(NULL) * 1000000;
}

static void write_document(void)
{
    back_end.bytes.len = 0;
    assert_int_equal(mu_pickle_encode(&scene.doc, &back_end.bytes), 0);
    back_end.token++;
    ring();
}

/* In a round of two, whose rank 0 does not say where the workers meet. */
static void boot(void)
{
    scene.handler->ops->join(scene.handler);
    UNTIL(is_in(MU_DOC_PARTICIPANT));
    enter(&first, MU_DOC_PARTICIPANT);
    find_me()->rank = 1;
    scene.doc.complete = true; /* as whoever fills a round does */
    write_document();
    UNTIL(back_end.gets_count == 1);
}

static void leave_first(void)
{
    mu_doc_drop(&scene.doc, &first, MU_DOC_PARTICIPANT | MU_DOC_HEARTBEAT);
}

/* The address cannot be read, and what takes us out of the document is on its way. */
static void fail_boot(void)
{
    struct mu_kv_request *get;

    boot();
    back_end.holds_writes = true;
    get = back_end.gets[--back_end.gets_count];
    get->rc = mu_fail(&get->error, MUSTER_EINVAL, "no");
    mu_later_push(&back_end.later, &get->link);
    UNTIL(back_end.write != NULL);
}

static void let_leave(void)
{
    back_end.holds_writes = false;
    answer_write(back_end.write);
}

/* ---- Tests ---- */

static void a_round_that_the_owner_was_not_told_of_is_not_told_as_over(void **state)
{
    (void)state;
    boot();
    leave_first();
    enter(&newcomer, MU_DOC_WAITING);
    write_document();
    UNTIL(scene.doc.round == 1 && is_in(MU_DOC_PARTICIPANT | MU_DOC_WAITING));
    assert_int_equal(scene.lost + scene.waiting + scene.removed + scene.failed, 0);
}

static void a_join_that_ends_with_its_time_while_it_boots_leaves(void **state)
{
    uint64_t until_ms = uv_now(&scene.loop) + JOIN_MS + 100;

    (void)state;
    boot();
    UNTIL(uv_now(&scene.loop) > until_ms);
    assert_int_equal(scene.failed, 0);
    leave_first();
    write_document();
    UNTIL(scene.failed == 1);
    assert_int_equal(scene.why.code, MUSTER_ERDZV_TIMEOUT);
    assert_string_equal(scene.why.text,
                        "join rendezvous 'job': timed out after 5 s: every round lost a member before it could begin");
    assert_false(scene.in_when_failed);
    assert_int_equal(scene.lost + scene.waiting + scene.removed + scene.left, 0);
}

static void an_owner_that_leaves_and_joins_while_a_failed_join_leaves_hears_of_both(void **state)
{
    (void)state;
    fail_boot();
    scene.handler->ops->leave(scene.handler);
    scene.handler->ops->join(scene.handler);
    let_leave();
    UNTIL(scene.left == 1);
    UNTIL(is_in(MU_DOC_WAITING)); /* the first is still in the round */
    assert_int_equal(scene.failed, 0);
}

static void a_join_that_is_taken_back_while_a_failed_one_leaves_is_not_made(void **state)
{
    (void)state;
    fail_boot();
    scene.handler->ops->leave(scene.handler);
    scene.handler->ops->join(scene.handler);
    scene.handler->ops->leave(scene.handler);
    take_turn_of(&scene.loop);
    let_leave();
    UNTIL(scene.left == 1);
    take_turn_of(&scene.loop);
    take_turn_of(&scene.loop);
    assert_null(find_me());
    assert_int_equal(scene.failed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, start_scene, end_scene)
        TEST(a_round_that_the_owner_was_not_told_of_is_not_told_as_over),
        TEST(a_join_that_ends_with_its_time_while_it_boots_leaves),
        TEST(an_owner_that_leaves_and_joins_while_a_failed_join_leaves_hears_of_both),
        TEST(a_join_that_is_taken_back_while_a_failed_one_leaves_is_not_made),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
