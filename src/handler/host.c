/* How a c10d node gets its store. See host.h for the diagram. */
#include "handler/host.h"

#include "base/text.h"
#include "base/texts.h"
#include "handler/dynamic.h"
#include "handler/engine_params.h"
#include "kv/kv.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#define NEVER UINT64_MAX

static const char loopback[] = "127.0.0.1"; /* hosts listen there, whatever else they do */

MU_DEFINE_TEXTS(mu_host_state_text, enum mu_host_state, MU_HOST_STATES)

/* ---- Parameters ---- */

static int check_store_type(const struct muster_rdzv_params *params, struct muster_error *reterr)
{
    char type[MU_RDZV_WORD_MAX];
    int rc = mu_rdzv_word_from_params(params, "store_type", "tcp", type, reterr);

    if (rc < 0 || strcmp(type, "tcp") == 0)
        return rc;
    if (strcmp(type, "file") == 0)
        return mu_fail(reterr, MUSTER_ENOTSUP, "option 'store_type': 'file' is not supported yet; 'tcp' is");
    return mu_fail(reterr, MUSTER_EINVAL, "option 'store_type': '%.40s' is neither tcp nor file", type);
}

static int read_endpoint(const struct muster_rdzv_params *params, char host[static MU_HOST_MAX],
                         struct mu_host_config *config, struct muster_error *reterr)
{
    char name[MU_RDZV_HOST_MAX];
    int port,
        rc = mu_rdzv_endpoint_parse(muster_rdzv_params_endpoint(params), MU_HOST_PORT_DEFAULT, name, &port, reterr);

    if (rc < 0)
        return rc;
    if (strlen(name) >= MU_HOST_MAX)
        return mu_fail(reterr, MUSTER_ELIMIT, "endpoint: a host name of %zu bytes is too long", strlen(name));
    memcpy(host, name, strlen(name) + 1);
    config->port = (uint16_t)port;
    return 0;
}

static int read_engine(const struct muster_rdzv_params *params, struct mu_host_config *config,
                       struct muster_error *reterr)
{
    char word[MU_RDZV_WORD_MAX];
    int rc = mu_rdzv_word_from_params(params, "engine", MU_ENGINE_DEFAULT, word, reterr);

    if (rc < 0)
        return rc;
    config->only = strcmp(word, "only") == 0;
    config->engine = config->only || strcmp(word, "on") == 0;
    if (!config->engine && strcmp(word, "off") != 0)
        return mu_fail(reterr, MUSTER_EINVAL, "option 'engine': '%.40s' is none of on, off and only", word);
    return 0;
}

static int read_rule(const struct muster_rdzv_params *params, struct mu_host_config *config,
                     struct muster_error *reterr)
{
    struct muster_value value;
    bool is_host = false;
    int rc = muster_rdzv_params_get_as_bool(params, "is_host", false, &is_host, reterr);

    if (rc < 0)
        return rc;
    config->rule = !muster_rdzv_params_get(params, "is_host", &value) ? MU_HOST_IF_OURS
                   : is_host                                          ? MU_HOST_ALWAYS
                                                                      : MU_HOST_NEVER;
    if (config->rule == MU_HOST_NEVER && config->port == 0)
        return mu_fail(reterr, MUSTER_EINVAL,
                       "port 0 is for the node that hosts the store, and is_host says it is not");
    return 0;
}

int mu_host_from_params(const struct muster_rdzv_params *params, const struct mu_dynamic_config *dynamic,
                        char host[static MU_HOST_MAX], char endpoint[static MU_ENDPOINT_MAX],
                        struct mu_host_config *ret_config, struct muster_error *reterr)
{
    int rc = check_store_type(params, reterr);

    if (rc == 0)
        rc = read_endpoint(params, host, ret_config, reterr);
    if (rc == 0)
        rc = read_rule(params, ret_config, reterr);
    if (rc == 0)
        rc = read_engine(params, ret_config, reterr);
    if (rc < 0)
        return rc;
    (void)mu_endpoint_format(host, ret_config->port, endpoint);
    ret_config->patience_ms = mu_dynamic_find_ms(dynamic);
    ret_config->others = dynamic->settings.nodes_max > 1;
    ret_config->warn_loopback = ret_config->others && dynamic->bind.hosts == NULL && mu_bind_is_universal(host);
    return 0;
}

struct mu_host_addresses mu_host_addresses(const union mu_addr *addrs, const bool *owned, unsigned count)
{
    struct mu_host_addresses all = { .count = count, .all_loopback = true };

    for (unsigned i = 0; i < count; i++) {
        all.any_own = all.any_own || owned[i];
        all.all_loopback = all.all_loopback && mu_addr_is_loopback(&addrs[i]);
    }
    return all;
}

/* ---- States and effects ---- */

static struct mu_host_effect *add(struct mu_host_effects *out, enum mu_host_effect_type type)
{
    assert(out->count < MU_HOST_EFFECTS_MAX);
    out->items[out->count] = (struct mu_host_effect){ .type = type };
    return &out->items[out->count++];
}

static void __attribute__((format(printf, 4, 5)))
say(struct mu_host *h, enum muster_log_level level, struct mu_host_effects *out, const char *format, ...)
{
    struct mu_host_effect *effect = add(out, MU_HOST_DO_SAY);
    va_list args;

    assert(h->said_count < MU_HOST_SAYS_MAX);
    effect->level = level;
    effect->text = h->said[h->said_count];
    va_start(args, format);
    (void)vsnprintf(h->said[h->said_count++], MU_HOST_SAY_MAX, format, args);
    va_end(args);
}

static void set_state(struct mu_host *h, enum mu_host_state state)
{
    static const unsigned before[] = {
    /* from which states each is entered */
#define FROM(name) 1U << MU_HOST_##name
        [MU_HOST_IDLE] = FROM(RESOLVING) | FROM(LISTENING) | FROM(CONNECTING) | FROM(ASKING) | FROM(PROBING) |
                         FROM(FOUND) | FROM(IDLE),
        [MU_HOST_RESOLVING] = FROM(IDLE) | FROM(PAUSING),
        [MU_HOST_PAUSING] = FROM(RESOLVING) | FROM(CONNECTING) | FROM(ASKING) | FROM(PROBING),
        [MU_HOST_LISTENING] = FROM(IDLE) | FROM(RESOLVING) | FROM(PAUSING),
        [MU_HOST_CONNECTING] = FROM(IDLE) | FROM(RESOLVING) | FROM(PAUSING) | FROM(LISTENING) | FROM(FOUND),
        [MU_HOST_ASKING] = FROM(CONNECTING),
        [MU_HOST_PROBING] = FROM(ASKING),
        [MU_HOST_FOUND] = FROM(LISTENING) | FROM(CONNECTING) | FROM(ASKING) | FROM(PROBING),
#undef FROM
    };

    assert((before[state] & 1U << h->state) != 0);
    h->state = state;
    switch (state) {
    case MU_HOST_RESOLVING:
        assert(h->addresses.count == 0 && h->config.rule != MU_HOST_NEVER);
        break;
    case MU_HOST_PAUSING:
        assert(h->wake_ms < h->deadline_ms);
        break;
    case MU_HOST_LISTENING:
        assert(h->config.rule == MU_HOST_ALWAYS || (h->config.rule == MU_HOST_IF_OURS && h->addresses.any_own));
        break;
    case MU_HOST_CONNECTING:
        assert(h->place == MU_HOST_OWN ? h->not_hosting.code == 0 : h->config.port != 0);
        break;
    case MU_HOST_ASKING:
        assert(h->place != MU_HOST_OWN); /* who hosts is known */
        break;
    case MU_HOST_PROBING:
        assert(h->place != MU_HOST_OWN && h->config.engine && !h->moved);
        break;
    case MU_HOST_IDLE:
    case MU_HOST_FOUND:
        break;
    }
}

static uint64_t left_ms(const struct mu_host *h, uint64_t now_ms)
{
    return h->deadline_ms > now_ms ? h->deadline_ms - now_ms : 1;
}

/* There is no store, and h->error says why. */
static void fail(struct mu_host *h, struct mu_host_effects *out)
{
    if (mu_host_hosts(h))
        add(out, MU_HOST_DO_UNLISTEN);
    set_state(h, MU_HOST_IDLE);
    h->error.code = MUSTER_ERDZV_CONNECTION;
    add(out, MU_HOST_DO_FAIL)->error = &h->error;
}

/* The port is ours and taken: by the store that another process here hosts, or by something else. */
static bool is_taken(const struct mu_host *h)
{
    return h->not_hosting.code == MUSTER_EADDRINUSE;
}

/* No store answered: adds what this node knows about the reason. */
static void fail_with(struct mu_host *h, const struct muster_error *error, struct mu_host_effects *out)
{
    h->error = *error;
    if (is_taken(h))
        (void)mu_wrap(&h->error, error->code,
                      error->code == MUSTER_EPROTOCOL ? "the port is taken by another program" : "the port is taken");
    else if (h->not_hosting.code != 0)
        (void)mu_wrap(&h->error, error->code, "%.300s; and no other store is there", h->not_hosting.text);
    fail(h, out);
}

/* ---- The way to a store ---- */

static bool is_first_try(const struct mu_host *h)
{
    return h->place != MU_HOST_OWN && h->not_hosting.code == 0 && !h->told_unreached;
}

static uint64_t left_s(const struct mu_host *h, uint64_t now_ms)
{
    return (left_ms(h, now_ms) + 999) / 1000;
}

static void connect_to(struct mu_host *h, enum mu_host_place place, uint64_t now_ms, struct mu_host_effects *out)
{
    struct mu_host_effect *effect;

    h->place = place;
    set_state(h, MU_HOST_CONNECTING);
    effect = add(out, MU_HOST_DO_CONNECT);
    effect->place = place;
    effect->wait_ms = left_ms(h, now_ms);
    if (is_taken(h) && effect->wait_ms > MU_HOST_LISTEN_AGAIN_MS)
        effect->wait_ms = MU_HOST_LISTEN_AGAIN_MS;
    else if (is_first_try(h) && effect->wait_ms > MU_HOST_FIRST_TRY_MS)
        effect->wait_ms = MU_HOST_FIRST_TRY_MS;
}

static void join_store(struct mu_host *h, uint64_t now_ms, struct mu_host_effects *out)
{
    if (h->config.port != 0) {
        connect_to(h, h->place == MU_HOST_LOOPBACK ? MU_HOST_LOOPBACK : MU_HOST_ENDPOINT, now_ms, out);
        return;
    }
    h->error = h->not_hosting;
    if (h->error.code == 0)
        (void)mu_fail(&h->error, MUSTER_ERDZV_CONNECTION,
                      "port 0 is for the node that hosts the store, and '%s' is not an address of this machine",
                      h->config.name);
    fail(h, out);
}

static void host_or_join(struct mu_host *h, uint64_t now_ms, struct mu_host_effects *out)
{
    enum mu_host_rule rule = h->config.rule;

    if (h->config.warn_loopback && h->addresses.count > 0 && h->addresses.all_loopback && !h->told_loopback) {
        h->told_loopback = true;
        say(h, MUSTER_LOG_WARNING, out, "'%s' is the loopback address, so only nodes on this host can join it",
            h->config.name);
    }
    if (rule == MU_HOST_ALWAYS || (rule == MU_HOST_IF_OURS && h->addresses.any_own)) {
        set_state(h, MU_HOST_LISTENING);
        add(out, MU_HOST_DO_LISTEN);
    } else {
        join_store(h, now_ms, out);
    }
}

/* With what is known; the client looks the name up by itself. */
static void go_on(struct mu_host *h, uint64_t now_ms, struct mu_host_effects *out)
{
    if (h->addresses.count > 0 || h->config.rule == MU_HOST_NEVER) {
        host_or_join(h, now_ms, out);
        return;
    }
    h->lookups++;
    set_state(h, MU_HOST_RESOLVING);
    add(out, MU_HOST_DO_RESOLVE);
}

/* False: there is no time left for another try. */
static bool pause_if_time(struct mu_host *h, uint64_t now_ms)
{
    if (now_ms + MU_HOST_PAUSE_MS >= h->deadline_ms)
        return false;
    h->wake_ms = now_ms + MU_HOST_PAUSE_MS;
    set_state(h, MU_HOST_PAUSING);
    return true;
}

/* ---- States ---- */

static void idle(struct mu_host *h, const struct mu_host_event *event, struct mu_host_effects *out)
{
    if (event->type != MU_HOST_ON_START)
        return;
    h->deadline_ms = event->now_ms + h->config.patience_ms;
    h->place = MU_HOST_ENDPOINT;
    h->not_hosting = (struct muster_error){ 0 };
    h->lookups = 0;
    h->hosted_by[0] = '\0';
    h->addresses = event->addresses;
    go_on(h, event->now_ms, out);
}

static void resolving(struct mu_host *h, const struct mu_host_event *event, struct mu_host_effects *out)
{
    const char *why = event->error == NULL ? "no address" : event->error->text;

    if (event->type != MU_HOST_ON_RESOLVED)
        return;
    h->addresses = event->addresses;
    if (h->addresses.count > 0 || h->config.rule == MU_HOST_ALWAYS) { /* which hosts, whatever the name is */
        host_or_join(h, event->now_ms, out);
    } else if (!pause_if_time(h, event->now_ms)) {
        (void)mu_fail(&h->error, MUSTER_ERDZV_CONNECTION, "cannot resolve '%s' (%u tries in %" PRIu64 " s): %s",
                      h->config.name, h->lookups, h->config.patience_ms / 1000, why);
        fail(h, out);
    } else if (h->lookups == 1) {
        say(h, MUSTER_LOG_WARNING, out, "cannot resolve '%s': %s; trying again for %" PRIu64 " s", h->config.name, why,
            left_s(h, event->now_ms));
    }
}

static void pausing(struct mu_host *h, const struct mu_host_event *event, struct mu_host_effects *out)
{
    if (event->now_ms >= h->wake_ms)
        go_on(h, event->now_ms, out);
}

/* A taken port has a store behind it, as a rule. Any other reason is told at once: the search may last for minutes. */
static void warn_of_guest(struct mu_host *h, struct mu_host_effects *out)
{
    if (is_taken(h) || h->told_guest || h->config.port == 0)
        return;
    h->told_guest = true;
    say(h, MUSTER_LOG_WARNING, out, "%s; looking for a store that already runs there", h->not_hosting.text);
}

/* A text that is longer than that of any node is no node's. */
static void take_node(struct mu_host *h, struct mu_slice node)
{
    size_t len = node.len < sizeof h->hosted_by ? node.len : 0;

    if (len > 0)
        memcpy(h->hosted_by, node.data, len);
    h->hosted_by[len] = '\0';
}

static void use(struct mu_host *h, bool engine, struct mu_host_effects *out)
{
    char endpoint[MU_ENDPOINT_MAX];

    set_state(h, MU_HOST_FOUND);
    if (engine)
        say(h, MUSTER_LOG_INFO, out, "using muster's engine at %s", mu_host_dial_endpoint(h, endpoint));
    add(out, MU_HOST_DO_USE)->engine = engine;
}

static void begin_hosting(struct mu_host *h, const struct mu_host_event *event, struct mu_host_effects *out)
{
    char warning[MU_BIND_WARNING_MAX];

    h->not_hosting = (struct muster_error){ 0 };
    h->own_port = event->port;
    take_node(h, event->node);
    if (mu_bind_warning(event->plan, h->config.name, "its store", h->config.others, warning))
        say(h, MUSTER_LOG_WARNING, out, "%s", warning);
    say(h, MUSTER_LOG_INFO, out, "hosting its store on port %u of %.1100s", (unsigned)event->port, event->plan->hosts);
    add(out, MU_HOST_DO_RECORD);
    if (h->config.engine && !h->moved) {
        h->place = MU_HOST_OWN;
        use(h, true, out);
        return;
    }
    add(out, MU_HOST_DO_WATCH);
    connect_to(h, MU_HOST_OWN, event->now_ms, out);
}

static void listening(struct mu_host *h, const struct mu_host_event *event, struct mu_host_effects *out)
{
    if (event->type == MU_HOST_ON_BOUND) {
        begin_hosting(h, event, out);
    } else if (event->type == MU_HOST_ON_NOT_BOUND) {
        h->not_hosting = *event->error;
        (void)mu_wrap(&h->not_hosting, event->error->code, "host the store");
        if (h->config.rule == MU_HOST_IF_OURS) {
            warn_of_guest(h, out);
            join_store(h, event->now_ms, out);
        } else {
            h->error = h->not_hosting;
            fail(h, out);
        }
    }
}

/* At the endpoint, or on loopback; the next try goes to the other one, after a pause: this one may have failed at once.
 * False: there is no time left for it. */
static bool try_again(struct mu_host *h, const struct mu_host_event *event, struct mu_host_effects *out)
{
    if (!pause_if_time(h, event->now_ms))
        return false;
    if (!h->told_taken) {
        h->told_taken = true;
        say(h, MUSTER_LOG_WARNING, out, "the port is taken: %s; trying again", event->error->text);
    }
    h->place = h->place == MU_HOST_LOOPBACK ? MU_HOST_ENDPOINT : MU_HOST_LOOPBACK;
    return true;
}

/* False: there is no time left. */
static bool try_for_longer(struct mu_host *h, const struct mu_host_event *event, struct mu_host_effects *out)
{
    if (!is_first_try(h) || !pause_if_time(h, event->now_ms))
        return false;
    h->told_unreached = true;
    say(h, MUSTER_LOG_NOTICE, out, "%s; trying again for %" PRIu64 " s", event->error->text, left_s(h, event->now_ms));
    return true;
}

/* True: the search goes on, after a pause. */
static bool goes_on(struct mu_host *h, const struct mu_host_event *event, struct mu_host_effects *out)
{
    return is_taken(h) ? try_again(h, event, out) : try_for_longer(h, event, out);
}

static void connecting(struct mu_host *h, const struct mu_host_event *event, struct mu_host_effects *out)
{
    if (event->type == MU_HOST_ON_CONNECTED && h->place == MU_HOST_OWN) {
        use(h, false, out);
    } else if (event->type == MU_HOST_ON_CONNECTED) {
        set_state(h, MU_HOST_ASKING);
        add(out, MU_HOST_DO_ASK)->wait_ms = left_ms(h, event->now_ms);
    } else if (event->type == MU_HOST_ON_NOT_CONNECTED) {
        add(out, MU_HOST_DO_DISCONNECT);
        if (event->error->code == MUSTER_EPROTOCOL || !goes_on(h, event, out))
            fail_with(h, event->error, out);
    }
}

static void go_without_answer(struct mu_host *h, const struct mu_host_event *event, struct mu_host_effects *out)
{
    add(out, MU_HOST_DO_DISCONNECT);
    if (event->error->code == MUSTER_EPROTOCOL || !pause_if_time(h, event->now_ms))
        fail_with(h, event->error, out);
}

static void asking(struct mu_host *h, const struct mu_host_event *event, struct mu_host_effects *out)
{
    char endpoint[MU_ENDPOINT_MAX];

    if (event->type == MU_HOST_ON_NOT_ANSWERED) {
        go_without_answer(h, event, out);
        return;
    }
    if (event->type != MU_HOST_ON_ANSWERED)
        return;
    take_node(h, event->node);
    if (h->config.engine && !h->moved) {
        set_state(h, MU_HOST_PROBING);
        add(out, MU_HOST_DO_PROBE)->wait_ms = left_ms(h, event->now_ms);
    } else if (event->in_engine) {
        add(out, MU_HOST_DO_DISCONNECT);
        (void)mu_fail(&h->error, MUSTER_ERDZV_CONNECTION,
                      "this node has engine=off, but the job meets in the engine of the store at %s alone (it has a "
                      "token, or engine=only); start it without engine=off",
                      mu_host_dial_endpoint(h, endpoint));
        fail(h, out);
    } else {
        use(h, false, out);
    }
}

static bool needs_engine(const struct mu_host *h)
{
    return h->config.only || h->config.token;
}

static void fail_without_engine(struct mu_host *h, const char *why, struct mu_host_effects *out)
{
    char endpoint[MU_ENDPOINT_MAX];

    (void)mu_fail(&h->error, MUSTER_ERDZV_CONNECTION, "a job with %s meets in the engine alone, and the store at %s %s",
                  h->config.token ? "a token (token_file)" : "engine=only", mu_host_dial_endpoint(h, endpoint), why);
    fail(h, out);
}

static void probing(struct mu_host *h, const struct mu_host_event *event, struct mu_host_effects *out)
{
    char endpoint[MU_ENDPOINT_MAX];

    if (event->type == MU_HOST_ON_NOT_PROBED) {
        go_without_answer(h, event, out);
        return;
    }
    if (event->type != MU_HOST_ON_PROBED)
        return;
    if (event->in_engine || needs_engine(h))
        add(out, MU_HOST_DO_DISCONNECT); /* it speaks frames from here on, and the engine's client has its own */
    if (!event->in_engine && needs_engine(h)) {
        fail_without_engine(h, "has no engine", out);
        return;
    }
    if (!event->in_engine)
        say(h, MUSTER_LOG_INFO, out, "meeting in a document: the store at %s has no engine",
            mu_host_dial_endpoint(h, endpoint));
    use(h, event->in_engine, out);
}

/* The engine has led us to this store, and has been here for long, perhaps: the search for it begins anew. */
static void follow(struct mu_host *h, const struct mu_host_event *event, struct mu_host_effects *out)
{
    if (needs_engine(h)) {
        fail_without_engine(h, "has a document of this job: a node without the engine began it", out);
        return;
    }
    h->moved = true;
    h->deadline_ms = event->now_ms + h->config.patience_ms;
    say(h, MUSTER_LOG_INFO, out, "meeting in a document: a PyTorch node is in the job");
    if (mu_host_hosts(h))
        add(out, MU_HOST_DO_WATCH);
    connect_to(h, h->place, event->now_ms, out);
}

static void found(struct mu_host *h, const struct mu_host_event *event, struct mu_host_effects *out)
{
    if (event->type == MU_HOST_ON_MOVED)
        follow(h, event, out);
    if (event->type != MU_HOST_ON_UNUSABLE)
        return;
    if (mu_host_hosts(h))
        add(out, MU_HOST_DO_UNLISTEN);
    set_state(h, MU_HOST_IDLE);
}

/* ---- From outside ---- */

void mu_host_init(struct mu_host *h, const struct mu_host_config *config)
{
    assert(config->port != 0 || config->rule != MU_HOST_NEVER);
    assert(config->patience_ms > 0 && (config->engine || !config->token));
    *h = (struct mu_host){ .config = *config, .state = MU_HOST_IDLE };
}

void mu_host_step(struct mu_host *h, const struct mu_host_event *event, struct mu_host_effects *out)
{
    assert(event->type != MU_HOST_ON_START || h->state == MU_HOST_IDLE);
    out->count = h->said_count = 0;
    switch (h->state) {
    case MU_HOST_IDLE:
        idle(h, event, out);
        break;
    case MU_HOST_RESOLVING:
        resolving(h, event, out);
        break;
    case MU_HOST_PAUSING:
        pausing(h, event, out);
        break;
    case MU_HOST_LISTENING:
        listening(h, event, out);
        break;
    case MU_HOST_CONNECTING:
        connecting(h, event, out);
        break;
    case MU_HOST_ASKING:
        asking(h, event, out);
        break;
    case MU_HOST_PROBING:
        probing(h, event, out);
        break;
    case MU_HOST_FOUND:
        found(h, event, out);
        break;
    }
    assert(h->not_hosting.code == 0 || h->place != MU_HOST_OWN);
}

uint64_t mu_host_deadline_ms(const struct mu_host *h)
{
    return h->state == MU_HOST_PAUSING ? h->wake_ms : NEVER;
}

const char *mu_host_dial_name(const struct mu_host *h)
{
    return h->place == MU_HOST_ENDPOINT ? h->config.name : loopback;
}

const char *mu_host_workers_name(const struct mu_host *h)
{
    return h->place == MU_HOST_LOOPBACK ? loopback : h->config.name;
}

uint16_t mu_host_port(const struct mu_host *h)
{
    return mu_host_hosts(h) ? h->own_port : h->config.port;
}

bool mu_host_is_known(const struct mu_host *h)
{
    return h->state == MU_HOST_FOUND || (h->moved && h->state != MU_HOST_IDLE);
}

const char *mu_host_published(const struct mu_host *h)
{
    return mu_host_hosts(h) ? h->hosted_by : NULL;
}

const char *mu_host_dial_endpoint(const struct mu_host *h, char text[static MU_ENDPOINT_MAX])
{
    return mu_endpoint_format(mu_host_dial_name(h), mu_host_port(h), text);
}

char *mu_host_document_key(const char *run_id)
{
    return mu_text_format("/" MU_KV_C10D_DOCUMENT_KEY, run_id);
}

/* The marker that there is none, or what begins as a pickle does in base64. */
static bool may_be_document(struct mu_slice text)
{
    return mu_slice_equal(text, mu_slice_str(MU_KV_C10D_NO_DOCUMENT)) ||
           (text.len > 2 && memcmp(text.data, "gA", 2) == 0);
}

bool mu_host_overwritten(const union mu_addr *writer, struct mu_slice value, char text[static MU_HOST_SAY_MAX],
                         struct mu_host_effect *ret_say)
{
    char addr[MU_ADDR_TEXT_MAX];

    if (writer == NULL || may_be_document(value))
        return false;
    (void)snprintf(text, MU_HOST_SAY_MAX, "%s has overwritten the document with something else (%zu bytes)",
                   mu_addr_format(writer, addr), value.len);
    *ret_say = (struct mu_host_effect){ .type = MU_HOST_DO_SAY, .level = MUSTER_LOG_WARNING, .text = text };
    return true;
}

enum mu_host_linger mu_host_linger(enum mu_host_company rendezvous, enum mu_host_company workers)
{
    if (rendezvous == MU_HOST_OTHERS)
        return MU_HOST_AWAIT_RENDEZVOUS;
    if (workers == MU_HOST_OTHERS)
        return MU_HOST_AWAIT_WORKERS;
    return rendezvous == MU_HOST_ALONE || workers == MU_HOST_ALONE ? MU_HOST_GO : MU_HOST_STAY;
}

enum mu_host_linger mu_host_linger_first(bool rendezvous, bool workers)
{
    return mu_host_linger(rendezvous ? MU_HOST_OTHERS : MU_HOST_NO_STORE, workers ? MU_HOST_OTHERS : MU_HOST_NO_STORE);
}
