/* On which addresses a node's servers listen. See the table in bind.h. */
#include "handler/bind.h"

#include "base/error.h"
#include "store/listen.h"

#include <assert.h>
#include <stdio.h>
#include <strings.h>

static const char loopback[] = "127.0.0.1,::1";

/* ---- Lists ---- */

/* Copies the next item of a list with commas into `item`; false: there is none, or it does not fit. */
static bool next_item(const char **at, char *item, size_t room)
{
    size_t len;

    if (*at == NULL)
        return false;
    len = strcspn(*at, ",");
    if (len >= room)
        return false;
    memcpy(item, *at, len);
    item[len] = '\0';
    *at = (*at)[len] == ',' ? *at + len + 1 : NULL;
    return true;
}

int mu_bind_check_hosts(const char *hosts, struct muster_error *reterr)
{
    const char *at = hosts;
    char item[MU_HOST_MAX] = "";
    union mu_addr addr;

    if (strcmp(hosts, MU_LISTEN_ANY) == 0)
        return 0;
    if (strlen(hosts) >= MU_BIND_TEXT_MAX / 2)
        return mu_fail(reterr, MUSTER_EINVAL, "a list of %zu bytes is too long", strlen(hosts));
    while (next_item(&at, item, sizeof item)) {
        if (strcmp(item, "localhost") != 0 && !mu_addr_parse(item, 0, &addr))
            return mu_fail(reterr, MUSTER_EINVAL,
                           "'%.80s' must be an address of this machine, localhost or any; several with commas", item);
    }
    return at == NULL ? 0 : mu_fail(reterr, MUSTER_EINVAL, "'%.80s' is too long for an address", at);
}

int mu_bind_check_allow(const char *allow, struct muster_error *reterr)
{
    const char *at = allow;
    char item[MU_HOST_MAX];
    struct mu_network network;
    size_t count = 0;
    int rc = 0;

    if (strlen(allow) >= MU_BIND_TEXT_MAX)
        return mu_fail(reterr, MUSTER_EINVAL, "a list of %zu bytes is too long", strlen(allow));
    for (; rc == 0 && next_item(&at, item, sizeof item); count++)
        rc = mu_network_parse(item, &network, reterr);
    if (rc == 0 && at != NULL)
        rc = mu_fail(reterr, MUSTER_EINVAL, "'%.80s' is too long for a network", at);
    if (rc == 0 && count > MU_BIND_NETWORKS_MAX)
        rc = mu_fail(reterr, MUSTER_EINVAL, "%zu networks are more than %d", count, MU_BIND_NETWORKS_MAX);
    return rc;
}

static int read_option(const struct muster_rdzv_params *params, const char *key,
                       int (*check)(const char *, struct muster_error *), const char **ret_text,
                       struct muster_error *reterr)
{
    struct muster_value value;
    int rc;

    *ret_text = NULL;
    if (!muster_rdzv_params_get(params, key, &value))
        return 0;
    if (value.kind != MUSTER_VALUE_TEXT)
        return mu_fail(reterr, MUSTER_EINVAL, "option '%s' is not text", key);
    rc = check(value.text, reterr);
    if (rc < 0)
        return mu_wrap(reterr, rc, "option '%s'", key);
    *ret_text = value.text;
    return 0;
}

int mu_bind_from_params(const struct muster_rdzv_params *params, struct mu_bind *ret_bind, struct muster_error *reterr)
{
    int rc = read_option(params, "bind", mu_bind_check_hosts, &ret_bind->hosts, reterr);

    return rc == 0 ? read_option(params, "allow", mu_bind_check_allow, &ret_bind->allow, reterr) : rc;
}

/* NULL: there is no `allow`. */
static const char *const *networks_of(const struct mu_bind *bind, struct mu_bind_networks *room)
{
    size_t count = 0;

    if (bind->allow == NULL)
        return NULL;
    assert(strlen(bind->allow) < sizeof room->text);
    memcpy(room->text, bind->allow, strlen(bind->allow) + 1);
    for (char *at = room->text; at != NULL;) {
        char *comma = strchr(at, ',');

        assert(count < MU_BIND_NETWORKS_MAX);
        room->items[count++] = at;
        if (comma != NULL)
            *comma++ = '\0';
        at = comma;
    }
    room->items[count] = NULL;
    return room->items;
}

struct muster_store_server_config mu_bind_server_config(const struct mu_bind *bind, const struct mu_bind_plan *plan,
                                                        uint16_t port, struct mu_bind_networks *room)
{
    return (struct muster_store_server_config){ .size = sizeof(struct muster_store_server_config),
                                                .host = plan->hosts,
                                                .port = port,
                                                .allow = networks_of(bind, room),
                                                .allow_own = true };
}

/* ---- The plan ---- */

static bool has_item(const struct mu_bind_plan *plan, const char *wanted)
{
    const char *at = plan->hosts;
    char item[MU_HOST_MAX];
    union mu_addr addr, other;
    bool is_addr = mu_addr_parse(wanted, 0, &addr);

    while (next_item(&at, item, sizeof item))
        if (strcmp(item, wanted) == 0 ||
            (is_addr && mu_addr_parse(item, 0, &other) && mu_addr_same_host(&addr, &other)))
            return true;
    return false;
}

/* What is there already is not listed twice. */
static void add_text(struct mu_bind_plan *plan, const char *text)
{
    char item[MU_HOST_MAX];

    while (next_item(&text, item, sizeof item)) {
        size_t len = strlen(plan->hosts);

        if (strcmp(item, "localhost") == 0)
            add_text(plan, loopback);
        if (strcmp(item, "localhost") == 0 || has_item(plan, item))
            continue;
        assert(len + strlen(item) + 2 <= sizeof plan->hosts); /* there is room for all addresses that can be counted */
        (void)snprintf(plan->hosts + len, sizeof plan->hosts - len, "%s%s", len == 0 ? "" : ",", item);
    }
}

static void add_addr(struct mu_bind_plan *plan, const union mu_addr *addr)
{
    char text[MU_ADDR_TEXT_MAX];

    (void)mu_addr_host(addr, text, sizeof text); /* it has room for every address */
    add_text(plan, text);
}

static void every_address(struct mu_bind_plan *plan, enum mu_bind_reason reason)
{
    plan->reason = reason;
    plan->hosts[0] = '\0';
    add_text(plan, MU_LISTEN_ANY);
}

/* Names that are loopback on every machine. */
static bool is_localhost(const char *name)
{
    static const char suffix[] = ".localhost";
    size_t len = strlen(name);

    return strncasecmp(name, "localhost", 9) == 0 || strncasecmp(name, "ip6-lo", 6) == 0 ||
           (len >= sizeof suffix && strcasecmp(name + len - (sizeof suffix - 1), suffix) == 0);
}

bool mu_bind_is_universal(const char *host)
{
    union mu_addr addr;

    return mu_addr_parse(host, 0, &addr) || is_localhost(host);
}

bool mu_bind_needs_lookup(const struct mu_bind *bind, const char *host, size_t known)
{
    return bind->hosts == NULL && known == 0 && strlen(host) < MU_HOST_MAX;
}

static bool asks_for_all(const struct mu_bind_question *question)
{
    for (size_t i = 0; i < question->addrs_count; i++) {
        if (mu_addr_is_any(&question->addrs[i]))
            return true;
    }
    return false;
}

/* 0.0.0.0 and :: mean what `any` does, as they do in an endpoint. */
static bool gives_all(const char *given)
{
    char item[MU_HOST_MAX];
    union mu_addr addr;

    if (strcmp(given, MU_LISTEN_ANY) == 0)
        return true;
    while (next_item(&given, item, sizeof item)) {
        if (mu_addr_parse(item, 0, &addr) && mu_addr_is_any(&addr))
            return true;
    }
    return false;
}

static void as_given(const char *given, struct mu_bind_plan *plan)
{
    if (gives_all(given)) {
        every_address(plan, MU_BIND_ASKED);
        return;
    }
    plan->reason = MU_BIND_ASKED;
    add_text(plan, given);
    add_text(plan, loopback); /* our own connections use it */
}

void mu_bind_plan(const struct mu_bind_question *question, struct mu_bind_plan *ret_plan)
{
    bool only_loopback = true;
    size_t count = 0;

    *ret_plan = (struct mu_bind_plan){ .reason = MU_BIND_OWN };
    if (question->given != NULL) {
        as_given(question->given, ret_plan);
        return;
    }
    if (asks_for_all(question)) {
        every_address(ret_plan, MU_BIND_ASKED);
        return;
    }
    for (size_t i = 0; i < question->addrs_count; i++) {
        if (!question->owned[i] && !mu_addr_is_loopback(&question->addrs[i]))
            continue;
        count++;
        only_loopback = only_loopback && mu_addr_is_loopback(&question->addrs[i]);
        add_addr(ret_plan, &question->addrs[i]);
    }
    if (count == 0) {
        every_address(ret_plan, MU_BIND_NOT_OWN);
        return;
    }
    if (only_loopback && !mu_bind_is_universal(question->host)) {
        ret_plan->reason = MU_BIND_INTERFACES;
        for (size_t i = 0; i < question->interfaces_count && i < MU_BIND_INTERFACES_MAX; i++)
            add_addr(ret_plan, &question->interfaces[i]);
    }
    if (question->also != NULL && question->also_owned && !mu_addr_is_any(question->also))
        add_addr(ret_plan, question->also);
    add_text(ret_plan, loopback);
}

/* ---- What comes of it ---- */

/* Other nodes were not told loopback, and of all interfaces they use one. */
static bool is_needed(const struct mu_bind_plan *plan, const union mu_addr *addr)
{
    return !mu_addr_is_loopback(addr) && plan->reason != MU_BIND_INTERFACES;
}

int mu_bind_each(const struct mu_bind_plan *plan, const union mu_addr *own, size_t own_count, mu_bind_listen *listen,
                 void *ctx, struct muster_error *reterr)
{
    bool every = strcmp(plan->hosts, MU_LISTEN_ANY) == 0;
    const char *at = every ? NULL : plan->hosts;
    char item[MU_HOST_MAX];
    union mu_addr addr;

    for (size_t i = 0; every && i < own_count; i++)
        (void)listen(ctx, &own[i], reterr);
    while (next_item(&at, item, sizeof item)) {
        int rc = mu_addr_parse(item, 0, &addr) ? listen(ctx, &addr, reterr) : 0;

        if (rc < 0 && is_needed(plan, &addr))
            return rc;
    }
    return 0;
}

bool mu_bind_warning(const struct mu_bind_plan *plan, const char *host, const char *store, bool others,
                     char text[static MU_BIND_WARNING_MAX])
{
    if (plan->reason == MU_BIND_NOT_OWN)
        (void)snprintf(text, MU_BIND_WARNING_MAX,
                       "'%.300s' is not an address of this machine, so %s listens on every address; --bind ADDR limits "
                       "that",
                       host, store);
    else if (plan->reason == MU_BIND_INTERFACES && others)
        (void)snprintf(text, MU_BIND_WARNING_MAX,
                       "'%.300s' is a loopback address on this machine, so %s also listens on the addresses of all "
                       "interfaces; --bind ADDR limits that",
                       host, store);
    else
        return false;
    return true;
}

/* ---- What the user says ---- */

bool mu_bind_covers(const struct mu_bind *bind, const union mu_addr *addr)
{
    const char *at = bind->hosts;
    char item[MU_HOST_MAX];
    union mu_addr bound;

    if (at == NULL || strcmp(at, MU_LISTEN_ANY) == 0 || mu_addr_is_loopback(addr))
        return true;
    while (next_item(&at, item, sizeof item)) {
        if (mu_addr_parse(item, 0, &bound) && (mu_addr_is_any(&bound) || mu_addr_same_host(&bound, addr)))
            return true;
    }
    return false;
}

bool mu_bind_first(const struct mu_bind *bind, char *text, size_t room)
{
    const char *at = bind->hosts;
    char item[MU_HOST_MAX];
    union mu_addr bound;
    bool found = false;

    if (at == NULL || strcmp(at, MU_LISTEN_ANY) == 0)
        return false;
    while (next_item(&at, item, sizeof item)) {
        if (strcmp(item, "localhost") == 0)
            memcpy(item, "127.0.0.1", sizeof "127.0.0.1");
        if (!mu_addr_parse(item, 0, &bound) || mu_addr_is_any(&bound) || (found && mu_addr_is_loopback(&bound)) ||
            strlen(item) >= room)
            continue;
        memcpy(text, item, strlen(item) + 1);
        if (!mu_addr_is_loopback(&bound))
            return true;
        found = true;
    }
    return found;
}
