/* Where the workers of a round meet. See the diagram in boot.h. */
#include "handler/boot.h"

#include "base/texts.h"
#include "rdzv/round_keys.h"
#include "store/net.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

enum { KEY_EXTRA = MU_ROUND_PREFIX_EXTRA + 16, RANK0_SHOWN_MAX = 128 };

MU_DEFINE_TEXTS(mu_boot_state_text, enum mu_boot_state, MU_BOOT_STATES)

static bool is_text(struct mu_slice value)
{
    for (size_t i = 0; i < value.len; i++) {
        unsigned char byte = (unsigned char)value.data[i];

        if (byte <= ' ' || byte == 0x7f)
            return false;
    }
    return value.len > 0;
}

int mu_boot_master_set_addr(struct mu_boot_master *master, const char *addr, struct muster_error *reterr)
{
    union mu_addr parsed;

    if (!is_text(mu_slice_str(addr)) || strlen(addr) >= sizeof master->addr || strpbrk(addr, "[]/") != NULL ||
        (strchr(addr, ':') != NULL && !mu_addr_parse(addr, 0, &parsed)))
        return mu_fail(reterr, MUSTER_EINVAL,
                       "master_addr: '%.100s' must be a host name or an address, without port and brackets", addr);
    memcpy(master->addr, addr, strlen(addr) + 1);
    return 0;
}

int mu_boot_master_from_params(const struct muster_rdzv_params *params, struct mu_boot_master *ret_master,
                               struct muster_error *reterr)
{
    struct muster_value value;
    int64_t port = 0;
    int rc = 0;

    *ret_master = (struct mu_boot_master){ .port = 0 };
    if (muster_rdzv_params_get(params, "master_addr", &value))
        rc = mu_boot_master_set_addr(ret_master, value.kind == MUSTER_VALUE_TEXT ? value.text : "", reterr);
    if (rc < 0 || !muster_rdzv_params_get(params, "master_port", &value))
        return rc;
    rc = muster_rdzv_params_get_as_int(params, "master_port", 0, &port, reterr);
    if (rc == 0 && (port < 1 || port > UINT16_MAX))
        rc = mu_fail(reterr, MUSTER_EINVAL, "master_port: %" PRId64 " is not a port from 1 to 65535", port);
    ret_master->port = (uint16_t)port;
    return rc;
}

bool mu_boot_is_localhost(const char *line)
{
    static const char blanks[] = " \t\r\n", ends[] = " \t\r\n#", name[] = "localhost";
    const char *word = line + strspn(line, blanks);
    size_t len = strcspn(word, ends);
    char host[INET6_ADDRSTRLEN];
    union mu_addr addr;

    if (len >= sizeof host)
        return false;
    memcpy(host, word, len);
    host[len] = '\0';
    if (!mu_addr_parse(host, 0, &addr) || !mu_addr_is_loopback(&addr))
        return false;
    do {
        word += len;
        word += strspn(word, blanks);
        len = strcspn(word, ends);
        if (len == sizeof name - 1 && memcmp(word, name, len) == 0)
            return true;
    } while (len > 0);
    return false;
}

int mu_boot_init(struct mu_boot *boot, const struct mu_boot_config *config, struct muster_error *reterr)
{
    const char *local_addr = config->local_addr == NULL ? "" : config->local_addr;
    const char *hostname = config->hostname == NULL ? "localhost" : config->hostname;
    bool full = false;

    *boot = (struct mu_boot){
        .master = config->master,
        .use_agent_store = config->use_agent_store,
        .agents_store = config->agents_store,
        .standalone = config->nodes_max == 1,
        /* A store on a thread gives its port back a moment later; one that was given is wanted again at once. */
        .apart = config->nodes_max >= MU_BOOT_APART_NODES && config->master.port == 0,
        .at_localhost = config->at_localhost,
        .loopback_name = config->no_localhost ? "127.0.0.1" : "localhost",
        .timeout_ms = config->timeout_ms == 0 ? MU_BOOT_TIMEOUT_MS : config->timeout_ms,
        .key_room = strlen(config->run_id) + KEY_EXTRA,
        .deadline_ms = UINT64_MAX,
        .retry_ms = UINT64_MAX,
    };
    if (strlen(local_addr) >= sizeof boot->local_addr)
        return mu_fail(reterr, MUSTER_EINVAL, "a local address of %zu bytes is too long", strlen(local_addr));
    if (strlen(hostname) >= sizeof boot->hostname)
        return mu_fail(reterr, MUSTER_EINVAL, "a host name of %zu bytes is too long", strlen(hostname));
    memcpy(boot->local_addr, local_addr, strlen(local_addr) + 1);
    memcpy(boot->hostname, hostname, strlen(hostname) + 1);
    boot->run_id = mu_arena_text(&boot->texts, config->run_id, &full);
    boot->bind.hosts = mu_arena_text(&boot->texts, config->bind.hosts, &full);
    boot->bind.allow = mu_arena_text(&boot->texts, config->bind.allow, &full);
    boot->key = mu_arena_alloc(&boot->texts, boot->key_room);
    if (full || boot->key == NULL) {
        mu_boot_done(boot);
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for the bootstrap of a rendezvous");
    }
    return 0;
}

void mu_boot_done(struct mu_boot *boot)
{
    mu_arena_done(&boot->texts);
    *boot = (struct mu_boot){ .deadline_ms = UINT64_MAX, .retry_ms = UINT64_MAX };
}

static struct mu_boot_effect *emit(struct mu_boot_effects *out, enum mu_boot_effect_type type)
{
    assert(out->count < MU_BOOT_EFFECTS_MAX);
    out->items[out->count] = (struct mu_boot_effect){ .type = type };
    return &out->items[out->count++];
}

/* Once in a step. */
static void __attribute__((format(printf, 4, 5)))
say(struct mu_boot *boot, enum muster_log_level level, struct mu_boot_effects *out, const char *format, ...)
{
    struct mu_boot_effect *effect = emit(out, MU_BOOT_DO_SAY);
    va_list args;

    va_start(args, format);
    (void)vsnprintf(boot->said, sizeof boot->said, format, args);
    va_end(args);
    effect->level = level;
    effect->text = boot->said;
}

/* ---- The ends ---- */

static bool is_under_way(const struct mu_boot *boot)
{
    return boot->state != MU_BOOT_IDLE && boot->state != MU_BOOT_DONE && boot->state != MU_BOOT_FAILED;
}

static void end(struct mu_boot *boot, enum mu_boot_state state)
{
    boot->state = state;
    boot->deadline_ms = boot->retry_ms = UINT64_MAX;
    boot->id++; /* whatever is still answered is dropped */
}

static void succeed(struct mu_boot *boot, struct mu_boot_effects *out)
{
    struct mu_boot_effect *effect = emit(out, MU_BOOT_DO_DONE);

    effect->addr = boot->addr;
    effect->port = boot->port;
    end(boot, MU_BOOT_DONE);
}

/* With boot->error filled in. */
static void fail(struct mu_boot *boot, struct mu_boot_effects *out)
{
    (void)mu_wrap(&boot->error, boot->error.code, "bootstrap of round %" PRId64, boot->round);
    emit(out, MU_BOOT_DO_FAIL)->error = &boot->error;
    end(boot, MU_BOOT_FAILED);
}

static void fail_for(struct mu_boot *boot, const struct muster_error *error, struct mu_boot_effects *out)
{
    boot->error = *error;
    (void)mu_wrap(&boot->error, boot->error.code, "%s", mu_boot_state_text(boot->state));
    fail(boot, out);
}

static void time_is_up(struct mu_boot *boot, uint64_t now_ms, struct mu_boot_effects *out)
{
    uint64_t tenths = (now_ms - boot->start_ms) / 100;
    double took_s = (double)tenths / 10;
    const char *what = mu_boot_state_text(boot->state);

    if (boot->last.code != 0)
        (void)mu_fail(&boot->error, MUSTER_ERDZV_CONNECTION, "%s: gave up after %.1f s: %s", what, took_s,
                      boot->last.text);
    else if (boot->state == MU_BOOT_AWAITING_ADDR || boot->state == MU_BOOT_AWAITING_PORT ||
             boot->state == MU_BOOT_LOOKING_BACK)
        (void)mu_fail(&boot->error, MUSTER_ERDZV_TIMEOUT, "rank 0 (%.*s) has not published MASTER_%s within %.1f s",
                      RANK0_SHOWN_MAX, boot->rank0, boot->state == MU_BOOT_AWAITING_PORT ? "PORT" : "ADDR", took_s);
    else
        (void)mu_fail(&boot->error, MUSTER_ERDZV_TIMEOUT, "%s: not done within %.1f s", what, took_s);
    fail(boot, out);
}

/* ---- Requests ---- */

static uint64_t left_ms(const struct mu_boot *boot, uint64_t now_ms)
{
    return boot->deadline_ms > now_ms ? boot->deadline_ms - now_ms : 1;
}

static uint64_t at_most(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static struct mu_slice key_of(struct mu_boot *boot, int64_t round, const char *name)
{
    size_t len;

    if (boot->tag != 0)
        mu_round_own_prefix(boot->key, boot->key_room, boot->run_id, round, boot->tag);
    else
        mu_round_stock_prefix(boot->key, boot->key_room, boot->run_id, round);
    len = strlen(boot->key) + strlen(name);
    assert(len < boot->key_room);
    strcat(boot->key, name);
    return mu_slice(boot->key, len);
}

/* A PyTorch rank 0 may publish this round's, or keep to an earlier round's; an earlier one's keys are there or not. */
static uint64_t patience_ms(const struct mu_boot *boot, uint64_t now_ms)
{
    bool may_be_elsewhere = !boot->rank0_ours && !boot->looked_back && boot->state == MU_BOOT_AWAITING_ADDR;

    if (may_be_elsewhere || boot->asked_round != boot->round)
        return at_most(MU_BOOT_STOCK_WAIT_MS, left_ms(boot, now_ms));
    return left_ms(boot, now_ms);
}

/* Makes the request that the state wants, for the first time or again. */
static void request(struct mu_boot *boot, uint64_t now_ms, struct mu_boot_effects *out)
{
    static const struct {
        enum mu_boot_effect_type type;
        const char *key;
    } wants[] = {
        [MU_BOOT_OPENING] = { MU_BOOT_DO_OPEN_STORE, NULL }, /* or what `opens` says */
        [MU_BOOT_CHECKING] = { MU_BOOT_DO_CHECK_SELF, NULL },
        [MU_BOOT_PUBLISHING_ADDR] = { MU_BOOT_DO_SET, MUSTER_KEY_MASTER_ADDR },
        [MU_BOOT_PUBLISHING_PORT] = { MU_BOOT_DO_SET, MUSTER_KEY_MASTER_PORT },
        [MU_BOOT_AWAITING_ADDR] = { MU_BOOT_DO_GET, MUSTER_KEY_MASTER_ADDR },
        [MU_BOOT_AWAITING_PORT] = { MU_BOOT_DO_GET, MUSTER_KEY_MASTER_PORT },
        /* The port is written last: where it is, the address is, too. */
        [MU_BOOT_LOOKING_BACK] = { MU_BOOT_DO_CHECK, MUSTER_KEY_MASTER_PORT },
        [MU_BOOT_REACHING] = { MU_BOOT_DO_REACH, NULL },
    };
    enum mu_boot_state state = boot->state;
    struct mu_boot_effect *effect = emit(out, state == MU_BOOT_OPENING ? boot->opens : wants[state].type);

    assert(is_under_way(boot));
    effect->id = ++boot->id;
    effect->wait_ms = left_ms(boot, now_ms);
    if (wants[state].key != NULL) {
        effect->key = key_of(boot, boot->asked_round, wants[state].key);
        if (effect->type == MU_BOOT_DO_SET)
            effect->value = mu_slice_str(state == MU_BOOT_PUBLISHING_ADDR ? boot->addr : boot->port_text);
    } else {
        effect->addr = state == MU_BOOT_REACHING ? boot->addr : boot->addrs[boot->addr_index];
        effect->port = state == MU_BOOT_OPENING ? boot->master.port : boot->port;
        effect->apart = effect->type == MU_BOOT_DO_OPEN_STORE && boot->apart;
    }
    if (effect->type == MU_BOOT_DO_GET)
        effect->wait_ms = at_most(MU_BOOT_GET_MS, patience_ms(boot, now_ms));
    else if (effect->type == MU_BOOT_DO_CHECK_SELF || effect->type == MU_BOOT_DO_REACH)
        effect->wait_ms = at_most(MU_BOOT_CHECK_MS, effect->wait_ms);
    boot->retry_ms = UINT64_MAX;
}

static void go(struct mu_boot *boot, enum mu_boot_state state, uint64_t now_ms, struct mu_boot_effects *out)
{
    boot->state = state;
    boot->last.code = 0;
    request(boot, now_ms, out);
}

/* The store may come back. */
static bool may_mend(int code)
{
    return code == MUSTER_ETIMEOUT || code == MUSTER_ECONNECT || code == MUSTER_ELOST || code == MUSTER_ERESOLVE ||
           code == MUSTER_ERDZV_CONNECTION;
}

/* ---- Rank 0: which address ---- */

static bool is_link_local(const char *text)
{
    union mu_addr addr;

    return mu_addr_parse(text, 0, &addr) && mu_addr_is_link_local(&addr);
}

static bool is_loopback(const char *text)
{
    union mu_addr addr;

    return mu_addr_parse(text, 0, &addr) && mu_addr_is_loopback(&addr);
}

static void offer(struct mu_boot *boot, const char *addr)
{
    if (addr == NULL || addr[0] == '\0' || is_link_local(addr) || strlen(addr) >= MU_BOOT_ADDR_MAX)
        return;
    for (size_t i = 0; i < boot->addrs_count; i++) {
        if (strcmp(boot->addrs[i], addr) == 0)
            return;
    }
    assert(boot->addrs_count < sizeof boot->addrs / sizeof boot->addrs[0]);
    memcpy(boot->addrs[boot->addrs_count++], addr, strlen(addr) + 1);
}

/* An address at which we may listen. */
static void offer_covered(struct mu_boot *boot, const char *text)
{
    union mu_addr addr;

    if (text == NULL || !mu_addr_parse(text, 0, &addr) || mu_bind_covers(&boot->bind, &addr))
        offer(boot, text);
}

/* The address that the user has named for listening, if there is one. */
static void offer_bound(struct mu_boot *boot)
{
    char text[MU_BOOT_ADDR_MAX];

    if (mu_bind_first(&boot->bind, text, sizeof text))
        offer(boot, text);
}

/* What others reached us at is better than what we see of ourselves, if that is only the loopback. */
static void choose_addrs(struct mu_boot *boot, const struct mu_boot_start *start)
{
    const char *own = start->own_addr == NULL ? "" : start->own_addr;

    boot->addrs_count = boot->addr_index = 0;
    if (boot->master.addr[0] != '\0' || boot->local_addr[0] != '\0') { /* the user's word, whatever it is */
        memcpy(boot->addrs[boot->addrs_count++], boot->master.addr[0] != '\0' ? boot->master.addr : boot->local_addr,
               MU_BOOT_ADDR_MAX);
        return;
    }
    if (boot->standalone) {
        offer(boot, boot->loopback_name);
        offer(boot, "127.0.0.1");
        return;
    }
    if (is_loopback(own)) {
        offer_covered(boot, start->accepted_on);
        if (start->elsewhere) {
            offer_bound(boot);
            offer(boot, boot->hostname);
        }
        if (boot->at_localhost)
            offer(boot, boot->loopback_name);
    }
    offer_covered(boot, own);
    offer_bound(boot);
    offer(boot, boot->hostname);
}

/* ---- The start of a round ---- */

static void warn_if_moved(struct mu_boot *boot, const struct mu_boot_start *start, struct mu_boot_effects *out)
{
    const struct mu_boot_past *last = &boot->past[(boot->past_count + MU_BOOT_ROUNDS_MAX - 1) % MU_BOOT_ROUNDS_MAX];

    if (boot->past_count == 0 || !boot->stock_seen || start->all_ours || start->old_dialect || start->met_at != NULL ||
        strcmp(last->rank0, boot->rank0) == 0)
        return;
    say(boot, MUSTER_LOG_WARNING, out,
        "rank 0 has moved from %.*s to %.*s in round %" PRId64
        ": a PyTorch member of an earlier round keeps the old MASTER_ADDR and MASTER_PORT and cannot follow",
        RANK0_SHOWN_MAX, last->rank0, RANK0_SHOWN_MAX, boot->rank0, start->round);
}

static void remember(struct mu_boot *boot, const struct mu_boot_start *start)
{
    struct mu_boot_past *now = &boot->past[boot->past_count++ % MU_BOOT_ROUNDS_MAX];

    now->round = start->round;
    memcpy(now->rank0, boot->rank0, sizeof now->rank0);
    boot->stock_seen = boot->stock_seen || !start->all_ours;
}

/* Of the last round, before anything else is opened. A PyTorch member would still come to it. */
static void close_old_store(struct mu_boot *boot, struct mu_boot_effects *out)
{
    if (boot->store == MU_BOOT_STORE_NONE || boot->stock_seen)
        return;
    boot->store = MU_BOOT_STORE_NONE;
    (void)emit(out, MU_BOOT_DO_CLOSE_STORE);
}

/* It is a round's own, whoever is in it. */
static void close_agents_store(struct mu_boot *boot, struct mu_boot_effects *out)
{
    if (boot->agents_wanted)
        (void)emit(out, MU_BOOT_DO_CLOSE_AGENTS);
    boot->agents_wanted = false;
}

static void open_store(struct mu_boot *boot, const struct mu_boot_start *start, uint64_t now_ms,
                       struct mu_boot_effects *out)
{
    choose_addrs(boot, start);
    if (boot->addrs_count == 0) {
        (void)mu_fail(&boot->error, MUSTER_EINVAL, "no address of this machine is known; --local-addr names one");
        fail(boot, out);
        return;
    }
    if (!boot->listens) {
        boot->opens = boot->agents_store ? MU_BOOT_DO_OPEN_AGENTS : MU_BOOT_DO_FREE_PORT;
        boot->agents_wanted = boot->agents_store;
    } else if (boot->store == MU_BOOT_STORE_OPEN) {
        boot->opens = MU_BOOT_DO_RENEW_STORE;
    } else {
        boot->opens = MU_BOOT_DO_OPEN_STORE;
        boot->store = MU_BOOT_STORE_OPENING;
    }
    go(boot, MU_BOOT_OPENING, now_ms, out);
}

static void settle_on_pair(struct mu_boot *boot, uint64_t now_ms, struct mu_boot_effects *out);

static void meet_there(struct mu_boot *boot, const struct mu_boot_start *start, uint64_t now_ms,
                       struct mu_boot_effects *out)
{
    if (strlen(start->met_at) >= sizeof boot->addr) {
        (void)mu_fail(&boot->error, MUSTER_ELIMIT,
                      "the workers meet at the endpoint, and its name of %zu bytes is too long for MASTER_ADDR",
                      strlen(start->met_at));
        fail(boot, out);
        return;
    }
    memcpy(boot->addr, start->met_at, strlen(start->met_at) + 1);
    boot->port = start->met_port;
    settle_on_pair(boot, now_ms, out);
}

/* The user of rank 0 wants it to open a store. */
static bool opens_by_name(const struct mu_boot *boot, const struct mu_boot_start *start)
{
    return start->rank == 0 && (boot->master.addr[0] != '\0' || boot->master.port != 0);
}

static void start_round(struct mu_boot *boot, const struct mu_boot_event *event, struct mu_boot_effects *out)
{
    const struct mu_boot_start *start = event->start;

    end(boot, MU_BOOT_IDLE);
    (void)snprintf(boot->rank0, sizeof boot->rank0, "%.*s", (int)at_most(start->rank0.len, sizeof boot->rank0 - 1),
                   start->rank0.data);
    boot->round = boot->asked_round = start->round;
    boot->tag = start->all_ours ? start->tag : 0;
    boot->rank0_ours = start->rank0_ours;
    boot->listens = boot->use_agent_store && !start->old_dialect;
    boot->looked_back = false;
    boot->addr[0] = '\0';
    boot->port = 0;
    boot->last.code = boot->error.code = 0;
    warn_if_moved(boot, start, out);
    remember(boot, start);
    close_old_store(boot, out);
    close_agents_store(boot, out);
    boot->start_ms = event->now_ms;
    boot->deadline_ms = event->now_ms + boot->timeout_ms;
    if (start->met_at != NULL && !opens_by_name(boot, start))
        meet_there(boot, start, event->now_ms, out);
    else if (start->rank == 0)
        open_store(boot, start, event->now_ms, out);
    else if (start->old_dialect && !start->rank0_ours)
        succeed(boot, out);
    else
        go(boot, MU_BOOT_AWAITING_ADDR, event->now_ms, out);
}

/* ---- Rank 0: publishing ---- */

static void publish(struct mu_boot *boot, uint64_t now_ms, struct mu_boot_effects *out)
{
    memcpy(boot->addr, boot->addrs[boot->addr_index], sizeof boot->addr);
    (void)snprintf(boot->port_text, sizeof boot->port_text, "%u", (unsigned)boot->port);
    go(boot, MU_BOOT_PUBLISHING_ADDR, now_ms, out);
}

static void not_listening(struct mu_boot *boot, const struct muster_error *error, struct mu_boot_effects *out)
{
    if (boot->opens == MU_BOOT_DO_OPEN_STORE)
        boot->store = MU_BOOT_STORE_NONE;
    fail_for(boot, error, out);
}

static void say_where(struct mu_boot *boot, const struct mu_bind_plan *plan, struct mu_boot_effects *out)
{
    const char *store = boot->listens ? "the workers' store" : "the agents' store";
    char text[MU_BIND_WARNING_MAX];

    if (mu_bind_warning(plan, boot->addrs[boot->addr_index], store, false, text))
        say(boot, MUSTER_LOG_WARNING, out, "%s", text);
    else
        say(boot, MUSTER_LOG_DEBUG, out, "%s listens on %.900s", store, plan->hosts);
}

/* The user's port is taken: perhaps by the store of the last round, in a process of this machine that has not heard
 * yet. */
static void port_is_taken(struct mu_boot *boot, const struct mu_boot_event *event, struct mu_boot_effects *out)
{
    bool is_first = boot->last.code == 0;

    boot->last = *event->error;
    if (event->now_ms - boot->start_ms >= MU_BOOT_PORT_WAIT_MS) {
        (void)mu_wrap(&boot->last, boot->last.code, "master_port");
        not_listening(boot, &boot->last, out);
        return;
    }
    boot->id++;
    boot->retry_ms = event->now_ms + MU_BOOT_RETRY_MS;
    if (is_first)
        say(boot, MUSTER_LOG_WARNING, out, "master_port: %.400s; trying again for %d s", event->error->text,
            MU_BOOT_PORT_WAIT_MS / 1000);
}

static void opening(struct mu_boot *boot, const struct mu_boot_event *event, struct mu_boot_effects *out)
{
    if (event->type == MU_BOOT_ON_LISTEN_FAILED && boot->master.port != 0 && event->error->code == MUSTER_EADDRINUSE) {
        port_is_taken(boot, event, out);
    } else if (event->type == MU_BOOT_ON_LISTEN_FAILED) {
        not_listening(boot, event->error, out);
    } else if (event->type == MU_BOOT_ON_LISTENING) {
        assert(event->port != 0 && (boot->master.port == 0 || event->port == boot->master.port));
        boot->port = event->port;
        if (event->plan != NULL)
            say_where(boot, event->plan, out);
        if (boot->listens) {
            boot->store = MU_BOOT_STORE_OPEN;
            go(boot, MU_BOOT_CHECKING, event->now_ms, out);
        } else {
            publish(boot, event->now_ms, out);
        }
    }
}

/* An address that does not lead back to us is of no use to others; there may be another one. */
static void checking(struct mu_boot *boot, const struct mu_boot_event *event, struct mu_boot_effects *out)
{
    const char *addr = boot->addrs[boot->addr_index];

    if (event->type == MU_BOOT_ON_CHECKED) {
        publish(boot, event->now_ms, out);
    } else if (event->type == MU_BOOT_ON_REQUEST_FAILED && boot->addr_index + 1 < boot->addrs_count) {
        boot->addr_index++;
        say(boot, MUSTER_LOG_WARNING, out,
            "this node does not reach its own worker store at %s, port %u: %.400s; trying %s", addr,
            (unsigned)boot->port, event->error->text, boot->addrs[boot->addr_index]);
        go(boot, MU_BOOT_CHECKING, event->now_ms, out);
    } else if (event->type == MU_BOOT_ON_REQUEST_FAILED) {
        boot->error = *event->error;
        (void)mu_wrap(&boot->error, boot->error.code, "this node does not reach its own worker store at %s, port %u",
                      addr, (unsigned)boot->port);
        fail(boot, out);
    }
}

static void publishing(struct mu_boot *boot, const struct mu_boot_event *event, struct mu_boot_effects *out)
{
    if (event->type != MU_BOOT_ON_SET)
        return;
    if (boot->state == MU_BOOT_PUBLISHING_ADDR)
        go(boot, MU_BOOT_PUBLISHING_PORT, event->now_ms, out);
    else
        succeed(boot, out);
}

/* ---- The others: reading ---- */

/* Rounds whose rank 0 we know to have been another one: their pair is not what this rank 0 keeps to. */
static bool was_anothers(const struct mu_boot *boot, int64_t round)
{
    for (size_t i = 0; i < MU_BOOT_ROUNDS_MAX && i < boot->past_count; i++) {
        if (boot->past[i].round == round && strcmp(boot->past[i].rank0, boot->rank0) != 0)
            return true;
    }
    return false;
}

/* The next earlier round; past the last of them we are back at this round's, to stay. */
static void look_back(struct mu_boot *boot, uint64_t now_ms, struct mu_boot_effects *out)
{
    int64_t first = boot->round > MU_BOOT_ROUNDS_MAX ? boot->round - MU_BOOT_ROUNDS_MAX : 0;

    boot->looked_back = true;
    do
        boot->asked_round--;
    while (boot->asked_round >= first && was_anothers(boot, boot->asked_round));
    if (boot->asked_round >= first) {
        go(boot, MU_BOOT_LOOKING_BACK, now_ms, out);
    } else {
        boot->asked_round = boot->round;
        go(boot, MU_BOOT_AWAITING_ADDR, now_ms, out);
    }
}

static void looking_back(struct mu_boot *boot, const struct mu_boot_event *event, struct mu_boot_effects *out)
{
    if (event->type != MU_BOOT_ON_FOUND)
        return;
    if (event->found)
        go(boot, MU_BOOT_AWAITING_ADDR, event->now_ms, out);
    else
        look_back(boot, event->now_ms, out);
}

static void take_addr(struct mu_boot *boot, const struct mu_boot_event *event, struct mu_boot_effects *out)
{
    if (!is_text(event->value) || event->value.len >= sizeof boot->addr) {
        (void)mu_fail(&boot->error, MUSTER_ERDZV_STATE, "MASTER_ADDR of rank 0 (%.*s) is not an address (%zu bytes)",
                      RANK0_SHOWN_MAX, boot->rank0, event->value.len);
        fail(boot, out);
        return;
    }
    memcpy(boot->addr, event->value.data, event->value.len);
    boot->addr[event->value.len] = '\0';
    go(boot, MU_BOOT_AWAITING_PORT, event->now_ms, out);
}

static bool parse_port(struct mu_slice value, uint16_t *ret_port)
{
    char text[8];

    if (value.len >= sizeof text || memchr(value.data, '\0', value.len) != NULL)
        return false;
    memcpy(text, value.data, value.len);
    text[value.len] = '\0';
    return mu_port_parse(text, ret_port) && *ret_port != 0;
}

/* The pair is known. What the user has named for this node's workers comes before what rank 0 has published. */
static void settle_on_pair(struct mu_boot *boot, uint64_t now_ms, struct mu_boot_effects *out)
{
    const char *addr = boot->master.addr[0] != '\0' ? boot->master.addr : boot->addr;
    uint16_t port = boot->master.port != 0 ? boot->master.port : boot->port;

    if (strcmp(addr, boot->addr) == 0 && port == boot->port) {
        succeed(boot, out);
        return;
    }
    say(boot, MUSTER_LOG_WARNING, out,
        "the workers of this node are sent to %s, port %u (master_addr, master_port); rank 0 (%.*s) has "
        "published %s, port %u",
        addr, (unsigned)port, RANK0_SHOWN_MAX, boot->rank0, boot->addr, (unsigned)boot->port);
    if (addr != boot->addr)
        memcpy(boot->addr, addr, sizeof boot->addr);
    boot->port = port;
    if (boot->listens)
        go(boot, MU_BOOT_REACHING, now_ms, out);
    else
        succeed(boot, out); /* worker 0 will listen: there is nothing to connect to yet */
}

static void reaching(struct mu_boot *boot, const struct mu_boot_event *event, struct mu_boot_effects *out)
{
    if (event->type == MU_BOOT_ON_CHECKED) {
        succeed(boot, out);
    } else if (event->type == MU_BOOT_ON_REQUEST_FAILED) {
        boot->error = *event->error;
        (void)mu_wrap(
            &boot->error, boot->error.code,
            "no store answers at %s, port %u, where master_addr and master_port of this node send its workers",
            boot->addr, (unsigned)boot->port);
        fail(boot, out);
    }
}

static void take_port(struct mu_boot *boot, const struct mu_boot_event *event, struct mu_boot_effects *out)
{
    if (event->value.len > 0 && parse_port(event->value, &boot->port)) {
        settle_on_pair(boot, event->now_ms, out);
        return;
    }
    (void)mu_fail(&boot->error, MUSTER_ERDZV_STATE,
                  "MASTER_PORT of rank 0 (%.*s) is not a decimal number from 1 to 65535 (%zu bytes)", RANK0_SHOWN_MAX,
                  boot->rank0, event->value.len);
    fail(boot, out);
}

static void awaiting(struct mu_boot *boot, const struct mu_boot_event *event, struct mu_boot_effects *out)
{
    bool may_look = !boot->rank0_ours && (!boot->looked_back || boot->asked_round != boot->round);

    if (event->type == MU_BOOT_ON_GOT && boot->state == MU_BOOT_AWAITING_ADDR)
        take_addr(boot, event, out);
    else if (event->type == MU_BOOT_ON_GOT)
        take_port(boot, event, out);
    else if (event->type == MU_BOOT_ON_MISSING && event->now_ms >= boot->deadline_ms)
        time_is_up(boot, event->now_ms, out);
    else if (event->type == MU_BOOT_ON_MISSING && may_look)
        look_back(boot, event->now_ms, out);
    else if (event->type == MU_BOOT_ON_MISSING)
        request(boot, event->now_ms, out); /* a moment early */
}

/* ---- Driving ---- */

static void request_failed(struct mu_boot *boot, const struct mu_boot_event *event, struct mu_boot_effects *out)
{
    boot->id++;
    if (!may_mend(event->error->code)) {
        fail_for(boot, event->error, out);
        return;
    }
    boot->last = *event->error;
    boot->retry_ms = event->now_ms + MU_BOOT_RETRY_MS;
}

static void pass_time(struct mu_boot *boot, uint64_t now_ms, struct mu_boot_effects *out)
{
    if (!is_under_way(boot))
        return;
    if (now_ms >= boot->deadline_ms)
        time_is_up(boot, now_ms, out);
    else if (now_ms >= boot->retry_ms)
        request(boot, now_ms, out);
}

static void answered(struct mu_boot *boot, const struct mu_boot_event *event, struct mu_boot_effects *out)
{
    switch (boot->state) {
    case MU_BOOT_OPENING:
        opening(boot, event, out);
        break;
    case MU_BOOT_CHECKING:
        checking(boot, event, out);
        break;
    case MU_BOOT_PUBLISHING_ADDR:
    case MU_BOOT_PUBLISHING_PORT:
        publishing(boot, event, out);
        break;
    case MU_BOOT_AWAITING_ADDR:
    case MU_BOOT_AWAITING_PORT:
        awaiting(boot, event, out);
        break;
    case MU_BOOT_LOOKING_BACK:
        looking_back(boot, event, out);
        break;
    case MU_BOOT_REACHING:
        reaching(boot, event, out);
        break;
    case MU_BOOT_IDLE:
    case MU_BOOT_DONE:
    case MU_BOOT_FAILED:
        break;
    }
}

void mu_boot_step(struct mu_boot *boot, const struct mu_boot_event *event, struct mu_boot_effects *out)
{
    out->count = 0;
    if (event->type == MU_BOOT_ON_START) {
        start_round(boot, event, out);
    } else if (event->type == MU_BOOT_ON_STOP && is_under_way(boot)) {
        end(boot, MU_BOOT_IDLE);
        close_old_store(boot, out);
        close_agents_store(boot, out);
    } else if (event->type == MU_BOOT_ON_TIME) {
        pass_time(boot, event->now_ms, out);
    } else if (is_under_way(boot) && event->id == boot->id && boot->retry_ms == UINT64_MAX) {
        if (event->type == MU_BOOT_ON_REQUEST_FAILED && boot->state != MU_BOOT_CHECKING &&
            boot->state != MU_BOOT_REACHING)
            request_failed(boot, event, out);
        else
            answered(boot, event, out);
    }
    assert(is_under_way(boot) == (boot->deadline_ms != UINT64_MAX));
}

uint64_t mu_boot_deadline_ms(const struct mu_boot *boot)
{
    return at_most(boot->deadline_ms, boot->retry_ms);
}

enum mu_kv_kind mu_boot_kv_kind(enum mu_boot_effect_type type)
{
    assert(type == MU_BOOT_DO_GET || type == MU_BOOT_DO_CHECK || type == MU_BOOT_DO_SET);
    return type == MU_BOOT_DO_GET ? MU_KV_GET : type == MU_BOOT_DO_CHECK ? MU_KV_CHECK : MU_KV_SET;
}

struct mu_boot_event mu_boot_answer(uint64_t id, const struct mu_kv_request *request)
{
    struct mu_boot_event event = { .id = id };

    if (request->rc < 0) {
        event.error = &request->error;
        event.type = request->kind == MU_KV_GET && request->rc == MUSTER_ETIMEOUT ? MU_BOOT_ON_MISSING
                                                                                  : MU_BOOT_ON_REQUEST_FAILED;
        return event;
    }
    event.type = request->kind == MU_KV_GET     ? MU_BOOT_ON_GOT
                 : request->kind == MU_KV_CHECK ? MU_BOOT_ON_FOUND
                                                : MU_BOOT_ON_SET;
    event.value = mu_slice(request->bytes.data, request->bytes.len);
    event.found = request->found;
    return event;
}

bool mu_boot_inbox_hear(struct mu_boot_inbox *inbox, const struct mu_boot_event *event)
{
    if (inbox->state == MU_BOOT_INBOX_IDLE) {
        inbox->state = MU_BOOT_INBOX_STEPPING;
        return true;
    }
    assert(inbox->state == MU_BOOT_INBOX_STEPPING && event->start == NULL);
    inbox->state = MU_BOOT_INBOX_ANSWERED;
    inbox->answer = *event;
    if (event->error != NULL) {
        inbox->error = *event->error;
        inbox->answer.error = &inbox->error;
    }
    return false;
}

bool mu_boot_inbox_next(struct mu_boot_inbox *inbox, struct mu_boot_event *ret_event)
{
    bool more = inbox->state == MU_BOOT_INBOX_ANSWERED;

    assert(inbox->state != MU_BOOT_INBOX_IDLE);
    if (more)
        *ret_event = inbox->answer;
    inbox->state = more ? MU_BOOT_INBOX_STEPPING : MU_BOOT_INBOX_IDLE;
    return more;
}

int mu_boot_told_code(int code)
{
    assert(code < 0);
    return muster_error_is_rdzv(code) ? code : MUSTER_ERDZV_CONNECTION;
}

bool mu_boot_lookup_want(enum mu_boot_lookup *lookup)
{
    bool is_free = *lookup == MU_BOOT_LOOKUP_FREE;

    *lookup = is_free ? MU_BOOT_LOOKUP_BUSY : MU_BOOT_LOOKUP_NEXT;
    return is_free;
}

void mu_boot_lookup_forget(enum mu_boot_lookup *lookup)
{
    if (*lookup != MU_BOOT_LOOKUP_FREE)
        *lookup = MU_BOOT_LOOKUP_STALE;
}

enum mu_boot_lookup mu_boot_lookup_answered(enum mu_boot_lookup *lookup)
{
    enum mu_boot_lookup was = *lookup;

    assert(was != MU_BOOT_LOOKUP_FREE);
    *lookup = was == MU_BOOT_LOOKUP_NEXT ? MU_BOOT_LOOKUP_BUSY : MU_BOOT_LOOKUP_FREE;
    return was;
}
