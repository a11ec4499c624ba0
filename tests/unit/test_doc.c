/* The document: members in order of coming, found in no time, counted right whatever comes and goes. */
#include "base/rng.h"
#include "failmalloc.h"
#include "pure.h"
#include "rdzv/doc.h"

#include <stdio.h>

static const struct mu_hash_seed seed = { 11, 22 };

static struct mu_node node(const char *name, int64_t pid, int64_t local_id)
{
    return (struct mu_node){ mu_slice_str(name), pid, local_id };
}

/* What must hold of any document. */
static void assert_sound(const struct mu_doc *doc)
{
    size_t participants = 0, waiting = 0, spares = 0;

    for (size_t i = 0; i < doc->count; i++) {
        const struct mu_doc_member *member = &doc->members[i];

        assert_true(member->in != 0);
        assert_ptr_equal(mu_doc_find(doc, &member->node), member);
        participants += (member->in & MU_DOC_PARTICIPANT) != 0;
        waiting += (member->in & MU_DOC_WAITING) != 0;
        spares += (member->in & MU_DOC_SPARE) != 0;
    }
    assert_int_equal(doc->participants, participants);
    assert_int_equal(doc->waiting, waiting);
    assert_int_equal(doc->spares, spares);
}

static void nodes_are_ordered_by_name_then_pid_then_local_id(void **state)
{
    const struct mu_node sorted[] = {
        node("", 9, 9),   node("a", 5, 9), node("a", 6, -1), node("a", 6, 0),        node("a", 10, 0),
        node("aa", 0, 0), node("b", 0, 0), node("z", 0, 0),  node("\xc3\xa9", 0, 0), node("\xf0\x9f\x8d\x8e", 0, 0),
    };

    (void)state;
    for (size_t i = 0; i < COUNT(sorted); i++)
        for (size_t j = 0; j < COUNT(sorted); j++) {
            int order = mu_node_compare(&sorted[i], &sorted[j]);

            assert_int_equal((order > 0) - (order < 0), (i > j) - (i < j));
            assert_int_equal(mu_node_equal(&sorted[i], &sorted[j]), i == j);
        }
}

static void a_node_is_named_by_all_of_its_parts(void **state)
{
    char text[MU_NODE_TEXT_MAX], longest[MU_NODE_NAME_MAX + 1];
    struct mu_node far = node("x", INT64_MIN, INT64_MIN);

    (void)state;
    assert_string_equal(mu_node_text(&(struct mu_node){ mu_slice_str("a.b"), 42, 7 }, text), "a.b_42_7");
    far.name = mu_slice(longest, MU_NODE_NAME_MAX);
    memset(longest, 'h', sizeof longest);
    longest[272] = '\xc3'; /* a character where the name is cut */
    longest[273] = '\xa9';
    mu_node_text(&far, text);
    assert_int_equal(strlen(text), 272 + strlen("..._-9223372036854775808_-9223372036854775808"));
    assert_string_equal(text + 272, "..._-9223372036854775808_-9223372036854775808");
}

static void a_node_is_read_from_its_text(void **state)
{
    static const char *const bad[] = { "",      "a",      "a_1",
                                       "_1_2",  "a_1_",   "a__2",
                                       "a_x_2", "a_1_-2", "a_1_1234567890123456789" };
    struct mu_node read = node("before", 1, 2);

    (void)state;
    for (size_t i = 0; i < COUNT(bad); i++)
        assert_false(mu_node_read(mu_slice_str(bad[i]), &read));
    assert_int_equal(read.local_id, 2);
    assert_true(mu_node_read(mu_slice_str("a_b.c_42_7"), &read));
    assert_true(mu_slice_equal(read.name, mu_slice_str("a_b.c")));
    assert_int_equal(read.pid, 42);
    assert_int_equal(read.local_id, 7);
}

static void a_name_cannot_break_a_line(void **state)
{
    char text[MU_NODE_TEXT_MAX];
    struct mu_node bad = { mu_slice("a\nb\0c\x7f\x1b\xc3\xa9", 9), 1, 2 };

    (void)state;
    assert_string_equal(mu_node_text(&bad, text), "a?b?c??\xc3\xa9_1_2");
}

static void our_own_kind_is_known_by_its_local_id(void **state)
{
    struct mu_node ours = node("a", 1, mu_node_local_id(MU_NODE_VERSION, UINT32_MAX));

    (void)state;
    assert_int_equal(ours.local_id, 0x4D1FFFFF);
    assert_true(mu_node_is_ours(&ours));
    ours.local_id = mu_node_local_id(15, 0x12345678);
    assert_int_equal(ours.local_id, 0x4DF45678);
    for (size_t i = 0; i < 6; i++) {
        static const int64_t others[] = { 0, 1, -1, 0x4CFFFFFF, 0x4E000000, INT64_C(0x14D000000) };

        ours.local_id = others[i];
        assert_false(mu_node_is_ours(&ours));
    }
}

static void a_fresh_document_has_nobody_in_it(void **state)
{
    struct mu_doc doc;
    struct mu_node a = node("a", 1, 0);

    (void)state;
    mu_doc_init(&doc, seed, MU_DOC_DIALECT_2_X);
    assert_int_equal(doc.round, 0);
    assert_false(doc.complete || doc.closed || doc.has_deadline);
    assert_true(doc.dialect.addr && doc.dialect.spares && doc.dialect.zoned);
    assert_null(mu_doc_find(&doc, &a));
    assert_false(mu_doc_has(&doc, &a, MU_DOC_PARTICIPANT));
    mu_doc_drop(&doc, &a, MU_DOC_PARTICIPANT);
    mu_doc_done(&doc);
}

static void a_member_is_in_what_it_entered_until_it_is_dropped(void **state)
{
    struct mu_doc doc;
    struct mu_node a = node("a", 1, 0), b = node("b", 1, 0);
    struct mu_doc_member *member;

    (void)state;
    mu_doc_init(&doc, seed, MU_DOC_DIALECT_2_X);
    mu_doc_enter(&doc, &a, MU_DOC_WAITING | MU_DOC_HEARTBEAT)->heartbeat_us = 5;
    (void)mu_doc_enter(&doc, &b, MU_DOC_SPARE);
    member = mu_doc_enter(&doc, &a, MU_DOC_PARTICIPANT);
    assert_int_equal(member->in, MU_DOC_WAITING | MU_DOC_HEARTBEAT | MU_DOC_PARTICIPANT);
    assert_int_equal(member->heartbeat_us, 5);
    member->rank = 3;
    assert_int_equal(mu_doc_enter(&doc, &a, MU_DOC_PARTICIPANT)->rank, 3); /* no new participant */
    assert_true(mu_doc_has(&doc, &a, MU_DOC_PARTICIPANT) && mu_doc_has(&doc, &a, MU_DOC_WAITING));
    assert_false(mu_doc_has(&doc, &a, MU_DOC_SPARE));
    assert_sound(&doc);

    mu_doc_drop(&doc, &a, MU_DOC_PARTICIPANT | MU_DOC_SPARE);
    assert_false(mu_doc_has(&doc, &a, MU_DOC_PARTICIPANT));
    assert_sound(&doc);
    assert_int_equal(mu_doc_enter(&doc, &a, MU_DOC_PARTICIPANT)->rank, 0);
    mu_doc_drop(&doc, &a, MU_DOC_PARTICIPANT | MU_DOC_WAITING | MU_DOC_HEARTBEAT);
    assert_null(mu_doc_find(&doc, &a));
    assert_int_equal(doc.count, 1);
    assert_sound(&doc);
    mu_doc_done(&doc);
}

static void the_same_name_with_another_number_is_another_node(void **state)
{
    struct mu_doc doc;
    struct mu_node nodes[] = { node("a", 1, 0), node("a", 2, 0), node("a", 1, 1), node("b", 1, 0), node("", 1, 0) };

    (void)state;
    mu_doc_init(&doc, seed, MU_DOC_DIALECT_2_X);
    for (size_t i = 0; i < COUNT(nodes); i++)
        (void)mu_doc_enter(&doc, &nodes[i], MU_DOC_WAITING);
    assert_int_equal(doc.count, COUNT(nodes));
    assert_sound(&doc);
    mu_doc_done(&doc);
}

static void the_order_of_the_rest_is_kept(void **state)
{
    struct mu_doc doc;
    struct mu_node nodes[] = { node("d", 1, 0), node("a", 1, 0), node("c", 1, 0), node("b", 1, 0) };

    (void)state;
    mu_doc_init(&doc, seed, MU_DOC_DIALECT_2_X);
    for (size_t i = 0; i < COUNT(nodes); i++)
        (void)mu_doc_enter(&doc, &nodes[i], MU_DOC_PARTICIPANT);
    mu_doc_drop(&doc, &nodes[1], MU_DOC_PARTICIPANT);
    (void)mu_doc_enter(&doc, &nodes[1], MU_DOC_PARTICIPANT);
    assert_int_equal(doc.count, 4);
    for (size_t i = 0; i < doc.count; i++)
        assert_int_equal(doc.members[i].node.name.data[0], "dcba"[i]);
    assert_sound(&doc);
    mu_doc_done(&doc);
}

static void a_node_may_stand_in_the_documents_own_memory(void **state)
{
    struct mu_doc doc;
    struct mu_node first = node("first", 1, 0), other = node("other", 1, 0);

    (void)state;
    mu_doc_init(&doc, seed, MU_DOC_DIALECT_2_X);
    (void)mu_doc_enter(&doc, &first, MU_DOC_PARTICIPANT);
    (void)mu_doc_enter(&doc, &other, MU_DOC_PARTICIPANT);
    for (int64_t i = 0; i < 100; i++) {
        struct mu_node again = { doc.members[0].node.name, 1000 + i, 0 };

        (void)mu_doc_enter(&doc, &again, MU_DOC_WAITING);
        (void)mu_doc_enter(&doc, &doc.members[1].node, MU_DOC_HEARTBEAT);
    }
    assert_int_equal(doc.count, 102);
    while (doc.count > 0)
        mu_doc_drop(&doc, &doc.members[doc.count / 2].node, ~0u);
    assert_int_equal(doc.participants + doc.waiting, 0);
    mu_doc_done(&doc);
}

/* Random steps against a plain array of flags. */
static void whatever_comes_and_goes_the_document_agrees_with_a_plain_list(void **state)
{
    enum { NAMES = 60, STEPS = 20000 };
    struct mu_rng rng = mu_rng_seeded(7);
    struct mu_doc doc;
    unsigned in[NAMES] = { 0 };

    (void)state;
    mu_doc_init(&doc, seed, MU_DOC_DIALECT_2_X);
    for (int step = 0; step < STEPS; step++) {
        char name[32];
        size_t which = (size_t)mu_rng_below(&rng, NAMES);
        unsigned flags = 1 + (unsigned)mu_rng_below(&rng, 15);
        struct mu_node it;

        (void)snprintf(name, sizeof name, "n%zu", which / 3);
        it = node(name, (int64_t)which % 3, 0);
        if (mu_rng_below(&rng, 5) < 2) {
            in[which] |= flags;
            assert_int_equal(mu_doc_enter(&doc, &it, flags)->in, in[which]);
        } else {
            in[which] &= ~flags;
            mu_doc_drop(&doc, &it, flags);
            assert_int_equal(mu_doc_find(&doc, &it) == NULL ? 0 : mu_doc_find(&doc, &it)->in, in[which]);
        }
        if (step % 100 == 0)
            assert_sound(&doc);
    }
    assert_sound(&doc);
    mu_doc_done(&doc);
}

static void fill(struct mu_doc *doc, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        char name[32];
        struct mu_node it;
        struct mu_doc_member *member;

        (void)snprintf(name, sizeof name, "node-%zu", i);
        it = node(name, (int64_t)i, 0);
        member = mu_doc_enter(doc, &it, i % 2 == 0 ? MU_DOC_PARTICIPANT | MU_DOC_HEARTBEAT : MU_DOC_WAITING);
        assert_non_null(member);
        member->rank = (int64_t)i;
        member->heartbeat_us = (int64_t)(i * 10);
    }
}

static void a_copy_is_equal_and_on_its_own(void **state)
{
    struct mu_doc doc, copy;

    (void)state;
    mu_doc_init(&doc, seed, MU_DOC_DIALECT_2_X);
    mu_doc_init(&copy, (struct mu_hash_seed){ 33, 44 }, MU_DOC_DIALECT_1_13);
    fill(&copy, 3);
    fill(&doc, 50);
    doc.round = 9;
    doc.complete = doc.closed = doc.has_deadline = true;
    doc.deadline_us = 77;
    assert_int_equal(mu_doc_copy(&copy, &doc), 0);
    assert_int_equal(copy.round, 9);
    assert_true(copy.complete && copy.closed && copy.has_deadline && copy.dialect.addr);
    assert_int_equal(copy.deadline_us, 77);
    assert_int_equal(copy.seed.k0, 33); /* the index works, so it was made with the copy's own */
    assert_int_equal(copy.count, 50);
    assert_sound(&copy);
    for (size_t i = 0; i < 50; i++) {
        assert_true(mu_node_equal(&copy.members[i].node, &doc.members[i].node));
        assert_int_equal(copy.members[i].rank, doc.members[i].rank);
        assert_int_equal(copy.members[i].heartbeat_us, doc.members[i].heartbeat_us);
    }
    assert_int_equal(mu_doc_copy(&copy, &copy), 0);
    assert_int_equal(copy.count, 50);
    mu_doc_reset(&doc, MU_DOC_DIALECT_1_13);
    assert_int_equal(doc.count + doc.participants + doc.waiting, 0);
    assert_false(doc.complete || doc.dialect.addr);
    assert_null(mu_doc_find(&doc, &copy.members[0].node));
    fill(&doc, 5);
    assert_sound(&doc);
    mu_doc_swap(&doc, &copy);
    assert_int_equal(doc.count, 50);
    assert_int_equal(copy.count, 5);
    assert_sound(&doc);
    assert_sound(&copy);
    mu_doc_done(&doc);
    mu_doc_done(&copy);
}

static void there_is_a_limit_to_the_members(void **state)
{
    struct mu_doc doc;
    struct mu_node it = node("x", 0, 0);

    (void)state;
    mu_doc_init(&doc, seed, MU_DOC_DIALECT_2_X);
    for (it.pid = 0; it.pid < MU_DOC_MEMBERS_MAX; it.pid++)
        assert_non_null(mu_doc_enter(&doc, &it, MU_DOC_SPARE));
    assert_null(mu_doc_enter(&doc, &it, MU_DOC_SPARE));
    assert_int_equal(doc.spares, MU_DOC_MEMBERS_MAX);
    it.pid = 5;
    assert_non_null(mu_doc_enter(&doc, &it, MU_DOC_WAITING)); /* who is in it already is no new member */
    mu_doc_done(&doc);
}

static void without_memory_nothing_changes(void **state)
{
    struct mu_node next = node("next", 1, 1);

    (void)state;
    for (size_t count = 0; count <= 16; count += 8) { /* where memory grows */
        FOR_EACH_FAILURE (n) {
            struct mu_doc doc, copy;
            bool failed;
            int rc;

            fail_alloc_at(0);
            mu_doc_init(&doc, seed, MU_DOC_DIALECT_2_X);
            mu_doc_init(&copy, seed, MU_DOC_DIALECT_1_13);
            fill(&doc, count);
            fill(&copy, 2);
            fail_alloc_at(n);
            failed = mu_doc_enter(&doc, &next, MU_DOC_WAITING) == NULL;
            assert_int_equal(failed, fail_alloc_hit());
            assert_int_equal(doc.count, failed ? count : count + 1);
            assert_sound(&doc);
            rc = mu_doc_copy(&copy, &doc);
            assert_int_equal(rc, fail_alloc_hit() && !failed ? MUSTER_ENOMEM : 0);
            assert_int_equal(copy.count, rc == 0 ? doc.count : 2);
            assert_sound(&copy);
            mu_doc_done(&doc);
            mu_doc_done(&copy);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nodes_are_ordered_by_name_then_pid_then_local_id),
        cmocka_unit_test(a_node_is_named_by_all_of_its_parts),
        cmocka_unit_test(a_node_is_read_from_its_text),
        cmocka_unit_test(a_name_cannot_break_a_line),
        cmocka_unit_test(our_own_kind_is_known_by_its_local_id),
        cmocka_unit_test(a_fresh_document_has_nobody_in_it),
        cmocka_unit_test(a_member_is_in_what_it_entered_until_it_is_dropped),
        cmocka_unit_test(the_same_name_with_another_number_is_another_node),
        cmocka_unit_test(the_order_of_the_rest_is_kept),
        cmocka_unit_test(a_node_may_stand_in_the_documents_own_memory),
        cmocka_unit_test(whatever_comes_and_goes_the_document_agrees_with_a_plain_list),
        cmocka_unit_test(a_copy_is_equal_and_on_its_own),
        cmocka_unit_test(there_is_a_limit_to_the_members),
        cmocka_unit_test(without_memory_nothing_changes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
