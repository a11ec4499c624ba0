/* The document of the classic etcd rendezvous: bytes as Python writes them, and keys as etcd has them. */
#include "failmalloc.h"
#include "pure.h"
#include "rdzv/classic.h"
#include "rdzv/classic_doc.h"

static struct mu_classic_doc doc_of(const char *text)
{
    struct mu_classic_doc doc;
    struct muster_error error;

    assert_int_equal(mu_classic_doc_read(mu_slice_str(text), &doc, &error), 0);
    return doc;
}

static void assert_text(struct mu_buf *buf, int rc, const char *text)
{
    assert_int_equal(rc, 0);
    assert_int_equal(buf->len, strlen(text));
    assert_memory_equal(buf->data, text, buf->len);
    mu_buf_done(buf);
}

static void every_document_has_the_bytes_that_python_writes(void **state)
{
    struct mu_classic_doc open = doc_of("{\"status\": \"joinable\", \"version\": \"12\", \"participants\": []}");
    struct mu_classic_doc two = doc_of("{\"status\": \"joinable\", \"version\": \"12\", \"participants\": [0, 1]}");
    struct mu_classic_doc frozen =
        doc_of("{\"status\": \"frozen\", \"version\": \"12\", \"participants\": [0, 1], \"keep_alives\": [\"/a\"]}");
    struct mu_classic_doc final = doc_of("{\"status\": \"final\", \"version\": \"12\", \"participants\": [0], "
                                         "\"keep_alives\": [\"/a\"], \"num_workers_waiting\": 0}");
    struct mu_buf out = { 0 };

    (void)state;
    assert_text(&out, mu_classic_doc_setup(&out), "{\"status\": \"setup\"}");
    assert_text(&out, mu_classic_doc_joinable(12, &out),
                "{\"status\": \"joinable\", \"version\": \"12\", \"participants\": []}");
    assert_text(&out, mu_classic_doc_joined(&open, false, &out),
                "{\"status\": \"joinable\", \"version\": \"12\", \"participants\": [0]}");
    assert_text(&out, mu_classic_doc_joined(&two, true, &out),
                "{\"status\": \"frozen\", \"version\": \"12\", \"participants\": [0, 1, 2], \"keep_alives\": []}");
    assert_text(&out, mu_classic_doc_left(&two, &out),
                "{\"status\": \"joinable\", \"version\": \"12\", \"participants\": [0]}");
    assert_text(&out, mu_classic_doc_frozen(&two, &out),
                "{\"status\": \"frozen\", \"version\": \"12\", \"participants\": [0, 1], \"keep_alives\": []}");
    assert_text(&out, mu_classic_doc_confirmed(&frozen, "/b\xc3\xa9", &out),
                "{\"status\": \"final\", \"version\": \"12\", \"participants\": [0, 1], \"keep_alives\": [\"/a\", "
                "\"/b\\u00e9\"], \"num_workers_waiting\": 0}");
    assert_text(&out, mu_classic_doc_waiting(&final, 7, &out),
                "{\"status\": \"final\", \"version\": \"12\", \"participants\": [0], \"keep_alives\": [\"/a\"], "
                "\"num_workers_waiting\": 7}");
    assert_text(&out, mu_classic_doc_closed(NULL, &out), "{\"status\": \"closed\"}");
    mu_classic_doc_done(&open);
    mu_classic_doc_done(&two);
    mu_classic_doc_done(&frozen);
    mu_classic_doc_done(&final);
}

static void keep_alives_are_counted_however_they_are_written(void **state)
{
    struct mu_classic_doc doc = doc_of("{\"status\": \"frozen\", \"version\": \"1\", \"participants\": [0, 1, 2, 3], "
                                       "\"keep_alives\": [\"/a\", \"/b/c\", \"//a\"]}");

    (void)state;
    assert_int_equal(mu_classic_doc_count_keep_alive(&doc, "/a"), 2);
    assert_int_equal(mu_classic_doc_count_keep_alive(&doc, "/b/c"), 1);
    assert_int_equal(mu_classic_doc_count_keep_alive(&doc, "/b"), 0);
    assert_string_equal(mu_classic_doc_keep_alive(&doc, 0), "/a");
    mu_classic_doc_done(&doc);
}

static void keys_are_written_as_etcd_has_them(void **state)
{
    static const char *const rows[][2] = {
        { "", "/" },
        { "/", "/" },
        { "//", "/" },
        { "a", "/a" },
        { "/a/", "/a" },
        { "a//b///c", "/a/b/c" },
        { "/a/./b", "/a/b" },
        { "/a/../b", "/b" },
        { "../../x", "/x" },
        { "/a/b/..", "/a" },
        { "/a..b/.c", "/a..b/.c" },
        { "/a/b/../../..", "/" },
    };
    char text[32];

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        assert_true(mu_classic_key_clean(rows[i][0], text, sizeof text));
        assert_string_equal(text, rows[i][1]);
    }
    assert_true(mu_classic_key_clean("/abc", text, 5));
    assert_false(mu_classic_key_clean("/abcd", text, 5));
}

/* As PyTorch's get_path(): the prefix, "run_" and the run id. */
static void a_jobs_keys_are_below_its_prefix(void **state)
{
    static const struct {
        const char *prefix, *run_id, *cleaned, *root;
    } rows[] = {
        { NULL, "job", "/torchelastic/p2p", "/torchelastic/p2p/run_job" }, /* the default */
        { "/", "job", "/", "/run_job" },
        { "custom_prefix", "123", "/custom_prefix", "/custom_prefix/run_123" },
        { "/a/b/", "a job", "/a/b", "/a/b/run_a job" },
    };
    char prefix[MU_CLASSIC_KEY_MAX], root[MU_CLASSIC_KEY_MAX], long_one[MU_CLASSIC_KEY_MAX];
    struct muster_error error;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        assert_int_equal(mu_classic_keys(rows[i].prefix, rows[i].run_id, prefix, root, &error), 0);
        assert_string_equal(prefix, rows[i].cleaned);
        assert_string_equal(root, rows[i].root);
    }
    memset(long_one, 'x', sizeof long_one - 1);
    long_one[sizeof long_one - 1] = '\0';
    assert_int_equal(mu_classic_keys(long_one, "job", prefix, root, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "the prefix 'xxx"));
    assert_int_equal(mu_classic_keys(NULL, long_one, prefix, root, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "the run id 'xxx"));
}

static void a_notice_is_read_as_it_was_written(void **state)
{
    const struct mu_classic_notice written = { .id = 0xc0ffee,
                                               .name = "node\xC3\xA9 1",
                                               .run_id = "my/job",
                                               .pid = 4711,
                                               .local_id = 5,
                                               .nodes_min = 2,
                                               .nodes_max = 4,
                                               .version = 3,
                                               .rank = 1 };
    struct mu_classic_notice read = { .id = 0 };
    struct mu_buf out = { 0 };

    (void)state;
    assert_int_equal(mu_classic_notice_write(&written, &out), 0);
    assert_true(mu_classic_notice_read(mu_buf_slice(&out), &read));
    assert_int_equal(read.id, written.id);
    assert_string_equal(read.name, written.name);
    assert_string_equal(read.run_id, written.run_id);
    assert_int_equal(read.pid, 4711);
    assert_int_equal(read.local_id, 5);
    assert_int_equal(read.nodes_min, 2);
    assert_int_equal(read.nodes_max, 4);
    assert_int_equal(read.version, 3);
    assert_int_equal(read.rank, 1);
    mu_buf_done(&out);
}

static void what_is_no_notice_is_not_read_as_one(void **state)
{
    static const char *const texts[] = {
        "",
        "null",
        "{}",
        "{\"v\": 0, \"id\": \"1\", \"run_id\": \"j\", \"name\": \"n\", \"pid\": 1, \"local_id\": 1, \"min\": 1, "
        "\"max\": 1, \"version\": 1, \"rank\": 0}",
        "{\"v\": 1, \"id\": \"0\", \"run_id\": \"j\", \"name\": \"n\", \"pid\": 1, \"local_id\": 1, \"min\": 1, "
        "\"max\": 1, \"version\": 1, \"rank\": 0}",
        "{\"v\": 1, \"id\": \"1\", \"run_id\": \"j\", \"name\": \"\", \"pid\": 1, \"local_id\": 1, \"min\": 1, "
        "\"max\": 1, \"version\": 1, \"rank\": 0}",
        "{\"v\": 1, \"id\": \"1\", \"run_id\": \"j\", \"name\": \"n\", \"pid\": 1, \"local_id\": 1, \"min\": 1, "
        "\"max\": 1, \"version\": 1, \"rank\": \"0\"}",
        "{\"v\": 1, \"id\": \"1\", \"run_id\": \"j\", \"name\": \"n\", \"pid\": 1, \"local_id\": 1, \"min\": 0, "
        "\"max\": 1, \"version\": 1, \"rank\": 0}",
    };
    struct mu_classic_notice notice = { .id = 77 };

    (void)state;
    for (size_t i = 0; i < COUNT(texts); i++) {
        assert_false(mu_classic_notice_read(mu_slice_str(texts[i]), &notice));
        assert_int_equal(notice.id, 77);
    }
}

static void without_memory_nothing_is_given_and_nothing_leaks(void **state)
{
    (void)state;
    FOR_EACH_FAILURE (n) {
        struct mu_buf out = { 0 };
        int rc = mu_classic_doc_setup(&out);

        assert_int_equal(rc, fail_alloc_hit() ? MUSTER_ENOMEM : 0);
        mu_buf_done(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_document_has_the_bytes_that_python_writes),
        cmocka_unit_test(keep_alives_are_counted_however_they_are_written),
        cmocka_unit_test(keys_are_written_as_etcd_has_them),
        cmocka_unit_test(a_jobs_keys_are_below_its_prefix),
        cmocka_unit_test(a_notice_is_read_as_it_was_written),
        cmocka_unit_test(what_is_no_notice_is_not_read_as_one),
        cmocka_unit_test(without_memory_nothing_is_given_and_nothing_leaks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
