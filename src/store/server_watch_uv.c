/* Keys of a store server that its own process watches and writes, without a connection. */
#include "base/error.h"
#include "store/server_parts_uv.h"

#include <assert.h>
#include <stdlib.h>

/* A session without a socket that only ever watches. */
struct mu_server_watch {
    struct mu_session session;
    struct mu_era *era;
    mu_server_value *on_value;
    void *ctx;
};

/* A notice has six parts, the last of which is the new value; the first answer has one. */
static void send_to_watch(struct mu_session *session, const struct mu_slice *parts, size_t count)
{
    struct mu_server_watch *watch = MU_LIST_ITEM(session, struct mu_server_watch, session);

    if (count > 1)
        watch->on_value(watch->ctx, parts[count - 1]);
}

int mu_server_watch(struct mu_server *server, struct mu_slice key, mu_server_value *on_value, void *ctx,
                    struct mu_server_watch **ret_watch, struct muster_error *reterr)
{
    struct mu_server_watch *watch = calloc(1, sizeof *watch);
    struct mu_request request = { .op = MU_OP_WATCH_KEY, .key = key };
    struct mu_slice value = mu_table_get(&server->era->service.table, key);
    struct mu_answer answer;

    if (watch == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory to watch a key");
    watch->era = server->era;
    watch->era->users++;
    mu_session_init(&watch->session, &watch->era->service);
    watch->session.send = send_to_watch;
    watch->on_value = on_value;
    watch->ctx = ctx;
    mu_table_step(&watch->era->service.table, &watch->session.peer, &request, &answer, reterr);
    if (answer.kind == MU_ANSWER_REFUSED) {
        mu_server_unwatch(server, watch);
        return MUSTER_ELIMIT; /* there is no other reason */
    }
    if (value.data != NULL)
        on_value(ctx, value);
    *ret_watch = watch;
    return 0;
}

void mu_server_unwatch(struct mu_server *server, struct mu_server_watch *watch)
{
    mu_session_leave(&watch->session);
    mu_server_close_doomed(server);
    mu_era_end(watch->era);
    free(watch);
}

/* ---- Writing from within the process ---- */

static void send_nothing(struct mu_session *session, const struct mu_slice *parts, size_t count)
{
    (void)session;
    (void)parts;
    (void)count;
}

int mu_server_compare_set(struct mu_server *server, struct mu_slice key, struct mu_slice expected,
                          struct mu_slice value, struct muster_error *reterr)
{
    struct mu_request request = { .op = MU_OP_COMPARE_SET, .key = key, .value = expected, .desired = value };
    struct mu_answer answer;
    struct mu_session session;

    assert(server->current == NULL);
    mu_session_init(&session, &server->era->service);
    session.send = send_nothing;
    mu_table_step(&server->era->service.table, &session.peer, &request, &answer, reterr);
    mu_session_leave(&session); /* tells those who wait for the key */
    mu_server_close_doomed(server);
    return answer.kind == MU_ANSWER_REFUSED ? MUSTER_ELIMIT : 0;
}
