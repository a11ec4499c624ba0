/* Arbitrary bytes as the answer of an etcd of version 3: the first byte chooses to which request, or that it is a
 * watch, which says the same in one piece and in many. Whatever comes, it is an answer that makes sense, or an error of
 * one line. */
#include "kv/etcd3.h"

#include <stdlib.h>

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            abort();                                                                                                   \
    } while (0)

static void check_line(const struct muster_error *error)
{
    EXPECT(error->code < 0 && error->text[0] != '\0');
    for (const char *at = error->text; *at != '\0'; at++)
        EXPECT((unsigned char)*at >= 0x20 && (unsigned char)*at < 0x7f);
}

static void check_kv(const struct mu_etcd3_kv *kv)
{
    EXPECT(kv->key.len > 0 && kv->key.data[kv->key.len] == '\0' && kv->value.data[kv->value.len] == '\0');
    EXPECT(kv->mod > 0);
}

static void check_answer(const struct mu_etcd3_request *request, const struct mu_etcd3_answer *answer)
{
    struct muster_error error = { 0 };

    if (answer->code != 0) {
        EXPECT(mu_etcd3_fail(answer->code, answer->message, 200, &error) == error.code);
        check_line(&error);
        return;
    }
    EXPECT(request->kind != MU_ETCD3_TXN || answer->results_count == (answer->succeeded ? 2 : 1));
    EXPECT(request->kind != MU_ETCD3_RANGE || answer->results_count == 1);
    for (size_t i = 0; i < answer->results_count; i++)
        for (size_t k = 0; k < answer->results[i].kvs_count; k++)
            check_kv(&answer->results[i].kvs[k]);
}

static void read_answer(unsigned how, struct mu_slice body)
{
    static const unsigned statuses[] = { 200, 400, 404, 503 };
    const struct mu_etcd3_request request = { .kind = (enum mu_etcd3_kind)(how % MU_ETCD3_WATCH),
                                              .txn = { .success_count = 2, .failure_count = 1 } };
    struct mu_etcd3_answer answer = { 0 };
    struct muster_error error = { 0 };

    if (mu_etcd3_read(&request, statuses[how / MU_ETCD3_WATCH % 4], body, &answer, &error) == 0)
        check_answer(&request, &answer);
    else
        check_line(&error);
    mu_etcd3_answer_done(&answer);
}

struct heard {
    size_t messages, events;
    int64_t revisions;
    int rc;
};

static void listen(struct mu_etcd3_stream *stream, struct heard *heard)
{
    struct mu_etcd3_message message = { 0 };
    struct muster_error error = { 0 };
    int rc;

    while (heard->rc == 0 && (rc = mu_etcd3_stream_next(stream, &message, &error)) != 0) {
        if (rc < 0) {
            check_line(&error);
            heard->rc = rc;
            return;
        }
        heard->messages++;
        heard->events += message.events_count;
        heard->revisions ^= message.revision;
        for (size_t i = 0; i < message.events_count; i++)
            check_kv(&message.events[i].kv);
        mu_etcd3_message_done(&message);
    }
}

static void read_stream(size_t piece, const uint8_t *data, size_t size)
{
    struct mu_etcd3_stream whole = { 0 }, pieces = { 0 };
    struct heard one = { 0 }, other = { 0 };

    EXPECT(mu_etcd3_stream_feed(&whole, mu_slice(data, size), NULL) == 0);
    listen(&whole, &one);
    for (size_t at = 0; at < size && other.rc == 0; at += piece) {
        EXPECT(mu_etcd3_stream_feed(&pieces, mu_slice(data + at, size - at < piece ? size - at : piece), NULL) == 0);
        listen(&pieces, &other);
    }
    EXPECT(one.messages == other.messages && one.events == other.events && one.revisions == other.revisions &&
           one.rc == other.rc);
    mu_etcd3_stream_done(&whole);
    mu_etcd3_stream_done(&pieces);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    if (data[0] < 128)
        read_answer(data[0], mu_slice(data + 1, size - 1));
    else
        read_stream((size_t)(data[0] - 127), data + 1, size - 1);
    return 0;
}
