/* A simulated etcd, version 2 of its keys API: conditions, TTLs, directories, watches with an index and a history that
 * ends. */
#include "classic_sim.h"

#include <string.h>

enum { KEYS_MAX = 4096, HISTORY_MAX = 1000, WATCHERS_MAX = 256 };

struct change {
    uint64_t index;
    char key[128];
};

static struct kv_node keys[KEYS_MAX];
static size_t keys_count;
static struct change history[HISTORY_MAX];
static size_t history_count, history_first, history_room;
static struct request *watchers[WATCHERS_MAX];
static size_t watchers_count;
static uint64_t index_now;

static char *copy(const char *text)
{
    char *made = strdup(text);

    if (made == NULL)
        abort();
    return made;
}

static struct kv_node *find(const char *key)
{
    for (size_t i = 0; i < keys_count; i++)
        if (strcmp(keys[i].key, key) == 0)
            return &keys[i];
    return NULL;
}

static bool is_below(const char *key, const char *dir)
{
    size_t len = strlen(dir);

    return strncmp(key, dir, len) == 0 && key[len] == '/';
}

static void forget_all(void)
{
    for (size_t i = 0; i < keys_count; i++)
        free(keys[i].value);
    keys_count = 0;
    history_count = history_first = 0;
}

static void drop_watchers(void)
{
    while (watchers_count > 0) {
        struct request *request = watchers[--watchers_count];

        request->watching = false;
        request->reply = (struct reply){ .code = lost_code(request, MUSTER_ELOST) };
        deliver(request);
    }
}

void etcd_reset(void)
{
    forget_all();
    watchers_count = 0;
    index_now = 3;
    history_room = w.on[F_CLEARED] ? 1 + below(8) : HISTORY_MAX;
}

void etcd_wipe(void)
{
    forget_all();
    index_now = 3;
    drop_watchers();
}

const char *etcd_value(const char *key)
{
    const struct kv_node *node = find(key);

    return node == NULL ? NULL : node->value;
}

uint64_t etcd_life(const char *key)
{
    const struct kv_node *node = find(key);

    return node == NULL ? 0 : node->life;
}

size_t etcd_count_below(const char *dir)
{
    size_t count = 0;

    for (size_t i = 0; i < keys_count; i++)
        count += is_below(keys[i].key, dir);
    return count;
}

const char *etcd_some_key(const char *dir, uint64_t which)
{
    for (size_t i = 0; i < keys_count; i++)
        if (is_below(keys[i].key, dir) && !keys[i].dir && which-- == 0)
            return keys[i].key;
    return NULL;
}

/* ---- Watches ---- */

static bool concerns(const struct request *request, const char *key)
{
    return strcmp(request->key, key) == 0 || (request->recursive && is_below(key, request->key)) ||
           is_below(request->key, key); /* a directory above it is gone */
}

static void fire(struct request *request, const struct change *change)
{
    request->watching = false;
    request->reply = (struct reply){ .modified = change->index, .index = index_now };
    (void)snprintf(request->reply.key, sizeof request->reply.key, "%s", change->key);
    deliver(request);
}

static void changed(const char *key, uint64_t index, const struct request *by)
{
    struct change change = { .index = index };

    (void)snprintf(change.key, sizeof change.key, "%s", key);
    if (history_count == history_room) {
        history_first = (history_first + 1) % history_room;
        history_count--;
    }
    history[(history_first + history_count++) % history_room] = change;
    for (size_t i = 0; i < watchers_count;) {
        struct request *request = watchers[i];

        if (!concerns(request, key) || request->wait_index > index) {
            i++;
            continue;
        }
        watchers[i] = watchers[--watchers_count];
        fire(request, &change);
    }
    on_changed(key, by);
}

static void watch(struct request *request)
{
    if (request->wait_index <= index_now) {
        if (history_count > 0 && request->wait_index < history[history_first].index && history_count == history_room) {
            request->reply = (struct reply){ .code = MU_CLASSIC_CODE_CLEARED, .index = index_now };
            return;
        }
        for (size_t i = 0; i < history_count; i++) {
            const struct change *change = &history[(history_first + i) % history_room];

            if (change->index >= request->wait_index && concerns(request, change->key)) {
                request->reply = (struct reply){ .modified = change->index, .index = index_now };
                (void)snprintf(request->reply.key, sizeof request->reply.key, "%s", change->key);
                return;
            }
        }
    }
    if (watchers_count == WATCHERS_MAX)
        fail("too many watchers");
    request->watching = true;
    watchers[watchers_count++] = request;
}

void etcd_forget(struct request *request)
{
    for (size_t i = 0; i < watchers_count; i++)
        if (watchers[i] == request)
            watchers[i] = watchers[--watchers_count];
    request->watching = false;
}

/* ---- Keys ---- */

static void remove_at(size_t i)
{
    free(keys[i].value);
    keys[i] = keys[--keys_count];
}

static void remove_tree(const char *key, const struct request *by)
{
    char gone[128];

    (void)snprintf(gone, sizeof gone, "%s", key);
    for (size_t i = keys_count; i-- > 0;)
        if (strcmp(keys[i].key, gone) == 0 || is_below(keys[i].key, gone))
            remove_at(i);
    changed(gone, ++index_now, by);
}

void etcd_expire(void)
{
    for (bool again = true; again;) {
        again = false;
        for (size_t i = 0; i < keys_count && !again; i++) {
            if (keys[i].expires_ms == 0 || keys[i].expires_ms > w.now_ms)
                continue;
            say("etcd: expire %s", keys[i].key);
            remove_tree(keys[i].key, NULL);
            again = true;
        }
    }
}

static struct kv_node *make(const char *key, bool dir)
{
    struct kv_node *node;

    if (keys_count == KEYS_MAX)
        fail("too many keys");
    node = &keys[keys_count++];
    *node = (struct kv_node){ .dir = dir };
    (void)snprintf(node->key, sizeof node->key, "%s", key);
    return node;
}

static void make_parents(const char *key)
{
    for (const char *at = strchr(key + 1, '/'); at != NULL; at = strchr(at + 1, '/')) {
        char parent[128];

        (void)snprintf(parent, sizeof parent, "%.*s", (int)(at - key), key);
        if (find(parent) == NULL)
            make(parent, true)->created = index_now;
    }
}

static int check(const struct request *request, const struct kv_node *node)
{
    if (request->prev_value != NULL && request->prev_value[0] == '\0')
        return 201; /* etcd compares with no empty value */
    if (request->must_not_exist)
        return node != NULL ? MU_CLASSIC_CODE_EXISTS : 0;
    if (node == NULL)
        return request->must_exist || request->prev_index != 0 || request->prev_value != NULL || request->refresh
                   ? MU_CLASSIC_CODE_NOT_FOUND
                   : 0;
    if ((request->prev_index != 0 && request->prev_index != node->modified) ||
        (request->prev_value != NULL && strcmp(request->prev_value, node->value != NULL ? node->value : "") != 0))
        return MU_CLASSIC_CODE_COMPARE;
    if (node->dir && !request->dir && !request->refresh)
        return 102;
    return 0;
}

static void put(struct request *request)
{
    struct kv_node *node = find(request->key);

    request->reply.code = check(request, node);
    request->reply.index = index_now;
    if (request->reply.code != 0)
        return;
    if (strcmp(request->key, ACTIVE) == 0)
        check_replaces(request, node != NULL ? node->value : NULL);
    index_now++;
    if (node == NULL) {
        make_parents(request->key);
        node = make(request->key, request->dir);
        node->created = index_now;
    }
    node->expires_ms = request->ttl_s > 0 ? w.now_ms + (uint64_t)request->ttl_s * 1000 : 0;
    if (node->expires_ms != 0)
        push(node->expires_ms, H_EXPIRE, 0, 0, NULL);
    node->modified = request->reply.modified = request->reply.index = index_now;
    if (request->refresh)
        return;
    if (!request->dir) {
        free(node->value);
        node->value = copy(request->value != NULL ? request->value : "");
    }
    node->life = request->life;
    changed(request->key, index_now, request);
}

void etcd_scribble(const char *key, const char *value)
{
    struct kv_node *node = find(key);

    if (node == NULL || node->dir)
        return;
    say("etcd: a stranger writes '%s' to %s", value, key);
    free(node->value);
    node->value = copy(value);
    node->modified = ++index_now;
    node->expires_ms = 0;
    changed(node->key, index_now, NULL);
}

static void get(struct request *request)
{
    const struct kv_node *node = find(request->key);
    struct reply *reply = &request->reply;

    reply->index = index_now;
    if (node == NULL) {
        reply->code = MU_CLASSIC_CODE_NOT_FOUND;
        return;
    }
    reply->modified = node->modified;
    if (!node->dir) {
        reply->value = copy(node->value);
        return;
    }
    for (size_t i = 0; i < keys_count; i++) {
        if (!is_below(keys[i].key, request->key) || strchr(keys[i].key + strlen(request->key) + 1, '/') != NULL)
            continue;
        reply->nodes = realloc(reply->nodes, (reply->nodes_count + 1) * sizeof *reply->nodes);
        if (reply->nodes == NULL)
            abort();
        reply->nodes[reply->nodes_count] = keys[i];
        reply->nodes[reply->nodes_count++].value = keys[i].value != NULL ? copy(keys[i].value) : NULL;
    }
}

static void delete (struct request *request)
{
    const struct kv_node *node = find(request->key);

    request->reply.index = index_now;
    if (node == NULL)
        request->reply.code = MU_CLASSIC_CODE_NOT_FOUND;
    else
        request->reply.code = check(request, node);
    if (request->reply.code == 0) {
        if (strcmp(request->key, ACTIVE) == 0)
            check_replaces(request, node->value);
        remove_tree(request->key, request);
        request->reply.modified = request->reply.index = index_now;
    }
}

void etcd_apply(struct request *request)
{
    etcd_expire();
    request->epoch = w.epoch;
    switch (request->kind) {
    case MU_CLASSIC_GET:
        get(request);
        break;
    case MU_CLASSIC_PUT:
        put(request);
        break;
    case MU_CLASSIC_DELETE:
        delete (request);
        break;
    case MU_CLASSIC_WATCH:
        watch(request);
        break;
    }
}
