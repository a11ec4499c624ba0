/* A back end that needs nobody else: whoever joins is the whole group. Shows what a shared object has to bring, and
 * uses every service of its host: answers come by timer, except that `leave` goes through a pipe. It is not linked with
 * libmuster.
 *
 * Options: delay_ms (of an answer; 0); misbehave: a wrong that is done on purpose, see below; change: what happens to
 * the first round ("waiting", "peers_lost", "removed") once the file `when` is there. */
#include <muster.h>

#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

struct solo {
    struct muster_handler base;
    struct muster_handler_ops ops;
    const struct muster_host *host;
    muster_rdzv_listener *listener;
    void *listener_ctx;
    void *timer, *watch;
    int pipe[2];
    int64_t delay_ms, round;
    bool closed, forgets, tells_early;
    enum muster_rdzv_event_type change; /* JOINED: none */
    char when[256];
    enum muster_rdzv_event_type answer;
};

static void tell(struct solo *solo, enum muster_rdzv_event_type type)
{
    struct muster_rdzv_info info = { .world_size = 1, .round = solo->round };
    struct muster_error error = { 0 };
    struct muster_rdzv_event event = {
        /* as of a header that had no `request` yet: it ended with bytes that meant nothing */
        .size = offsetof(struct muster_rdzv_event, note),
        .type = type,
        .round = solo->round,
        .closed = solo->closed,
        .count = type == MUSTER_RDZV_WAITING,
        .request = (enum muster_rdzv_request)0x5A5A5A5A
    };

    if (type == MUSTER_RDZV_JOINED)
        event.info = &info;
    if (type == MUSTER_RDZV_FAILED) {
        (void)solo->host->fail(solo->host->ctx, &error, MUSTER_ERDZV_CLOSED, "solo: the rendezvous is closed");
        event.error = &error;
    }
    solo->listener(solo->listener_ctx, &event);
}

/* The timer is free while there is nothing to answer. */
static void on_look(void *arg)
{
    struct solo *solo = arg;

    solo->host->timer_stop(solo->host->ctx, solo->timer);
    solo->timer = NULL;
    if (access(solo->when, F_OK) == 0)
        tell(solo, solo->change);
    else
        solo->timer = solo->host->timer_start(solo->host->ctx, 10, on_look, solo);
}

static void on_timer(void *arg)
{
    struct solo *solo = arg;

    solo->host->timer_stop(solo->host->ctx, solo->timer);
    solo->timer = NULL;
    if (solo->answer == MUSTER_RDZV_JOINED && solo->round == 0 && solo->change != MUSTER_RDZV_JOINED)
        solo->timer = solo->host->timer_start(solo->host->ctx, 10, on_look, solo);
    tell(solo, solo->answer);
}

static void answer_later(struct solo *solo, enum muster_rdzv_event_type answer)
{
    solo->answer = answer;
    if (solo->tells_early) {
        tell(solo, answer);
        return;
    }
    solo->host->timer_stop(solo->host->ctx, solo->timer);
    solo->timer = solo->host->timer_start(solo->host->ctx, solo->delay_ms, on_timer, solo);
}

static void solo_join(struct muster_handler *handler)
{
    struct solo *solo = (struct solo *)handler;

    if (!solo->closed)
        solo->round++;
    answer_later(solo, solo->closed ? MUSTER_RDZV_FAILED : MUSTER_RDZV_JOINED);
}

static void solo_leave(struct muster_handler *handler)
{
    struct solo *solo = (struct solo *)handler;

    if (write(solo->pipe[1], "x", 1) != 1)
        solo->host->log(solo->host->ctx, MUSTER_LOG_WARNING, "the pipe is full");
}

static void on_readable(void *arg, unsigned events)
{
    struct solo *solo = arg;
    char byte;

    if ((events & MUSTER_FD_READABLE) != 0 && read(solo->pipe[0], &byte, 1) == 1)
        tell(solo, MUSTER_RDZV_LEFT);
}

static void solo_close(struct muster_handler *handler)
{
    struct solo *solo = (struct solo *)handler;

    solo->closed = true;
    answer_later(solo, MUSTER_RDZV_CLOSED);
}

static void solo_look(struct muster_handler *handler)
{
    answer_later((struct solo *)handler, MUSTER_RDZV_LOOKED);
}

static bool solo_use_agent_store(const struct muster_handler *handler)
{
    (void)handler;
    return true;
}

static void solo_free(struct muster_handler *handler, void (*done)(void *ctx), void *ctx)
{
    struct solo *solo = (struct solo *)handler;

    if (!solo->forgets) {
        solo->host->timer_stop(solo->host->ctx, solo->timer);
        solo->host->fd_unwatch(solo->host->ctx, solo->watch);
        (void)close(solo->pipe[0]);
        (void)close(solo->pipe[1]);
    }
    tell(solo, MUSTER_RDZV_LEFT); /* nobody hears this any more */
    free(solo);
    done(ctx);
}

static void read_change(struct solo *solo, const struct muster_rdzv_params *params)
{
    static const struct {
        const char *name;
        enum muster_rdzv_event_type type;
    } rows[] = { { "waiting", MUSTER_RDZV_WAITING },
                 { "peers_lost", MUSTER_RDZV_PEERS_LOST },
                 { "removed", MUSTER_RDZV_REMOVED } };
    struct muster_value change, when;

    solo->change = MUSTER_RDZV_JOINED;
    if (!solo->host->params_get(params, "change", &change) || !solo->host->params_get(params, "when", &when))
        return;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(rows[i].name, change.text) == 0)
            solo->change = rows[i].type;
    }
    (void)strncpy(solo->when, when.text, sizeof solo->when - 1);
}

static bool misbehaves(const struct muster_host *host, const struct muster_rdzv_params *params, const char *how)
{
    struct muster_value value;

    return host->params_get(params, "misbehave", &value) && value.kind == MUSTER_VALUE_TEXT &&
           strcmp(value.text, how) == 0;
}

static const struct muster_handler_ops solo_ops = {
    .size = offsetof(struct muster_handler_ops, endpoint), /* what came later is not known here */
    .name = "solo",
    .join = solo_join,
    .leave = solo_leave,
    .close = solo_close,
    .look = solo_look,
    .use_agent_store = solo_use_agent_store,
    .free = solo_free,
};

static int check(const struct muster_host *host, const struct muster_rdzv_params *params, struct muster_error *reterr)
{
    if (host->size < sizeof *host)
        return MUSTER_ENOTSUP;
    if (host->params_run_id(params)[0] == '\0')
        return host->fail(host->ctx, reterr, MUSTER_EINVAL, "solo: the run id is empty");
    if (host->params_min_nodes(params) > 1)
        return host->fail(host->ctx, reterr, MUSTER_EINVAL, "solo: one node is all there will ever be");
    return 0;
}

/* What the last handler was given, for a test to ask itself. */
MUSTER_API extern const struct muster_host *solo_host;
const struct muster_host *solo_host;

static int solo_create(const struct muster_host *host, const struct muster_rdzv_params *params,
                       muster_rdzv_listener *listener, void *listener_ctx, struct muster_handler **ret_handler,
                       struct muster_error *reterr)
{
    struct solo *solo = calloc(1, sizeof *solo);
    int rc = solo == NULL ? MUSTER_ENOMEM : check(host, params, reterr);

    if (rc == 0)
        rc = host->params_get_as_int(params, "delay_ms", 0, &solo->delay_ms, reterr);
    if (rc == 0 && pipe2(solo->pipe, O_CLOEXEC | O_NONBLOCK) < 0)
        rc = host->fail(host->ctx, reterr, MUSTER_ESYSTEM, "solo: no pipe");
    if (rc < 0) {
        free(solo);
        return rc;
    }
    solo->ops = solo_ops;
    solo->base.ops = &solo->ops;
    solo->host = host;
    solo->listener = listener;
    solo->listener_ctx = listener_ctx;
    solo->watch = host->fd_watch(host->ctx, solo->pipe[0], MUSTER_FD_READABLE, on_readable, solo);
    solo->round = -1;
    read_change(solo, params);
    solo->forgets = misbehaves(host, params, "forget");
    solo->tells_early = misbehaves(host, params, "tell in calls");
    if (misbehaves(host, params, "tell in create"))
        tell(solo, MUSTER_RDZV_CLOSED);
    if (misbehaves(host, params, "other name"))
        solo->ops.name = "duo";
    if (misbehaves(host, params, "lack join"))
        solo->ops.join = NULL;
    host->log(host->ctx, MUSTER_LOG_INFO, "created");
    solo_host = host;
    *ret_handler = &solo->base;
    return 0;
}

MUSTER_API extern const struct muster_backend_1 muster_backend_1;
const struct muster_backend_1 muster_backend_1 = {
    .abi = MUSTER_BACKEND_ABI,
    .size = sizeof muster_backend_1,
    .name = "solo",
    .create = solo_create,
};
