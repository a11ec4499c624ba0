/* The engine on its own, driven by tests/interop/test_engine.py, which does the same to a real etcd. One request a
 * line:
 *
 *   grant LEASE                       revoke LEASE
 *   txn COMPARES THEN OTHERWISE       and then so many lines: absent KEY, create KEY N, mod KEY N;
 *                                     put KEY VALUE LEASE, delete KEY, prefix KEY
 *   range KEY LIMIT                   prefix KEY LIMIT        no limit: 0
 *
 * `-` is an empty text. Revisions count from 0. What came of it is one line each, and then a dot: `done CODE HELD
 * REVISION`, keys (`key KEY VALUE CREATE MOD LEASE`), changes (`put ...` as a key, `delete KEY MOD`). */
#include "store/engine.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { LINE_BYTES = 1024, OPS_MAX = 64 };

#define BASE MU_ENGINE_REVISION_MIN

static int64_t counted(int64_t revision)
{
    return revision >= BASE ? revision - BASE : 0;
}

static void print_kv(const char *what, const struct mu_engine_kv *kv)
{
    (void)printf("%s %.*s %.*s %" PRId64 " %" PRId64 " %" PRIu64 "\n", what, (int)kv->key.len, kv->key.data,
                 kv->value.len > 0 ? (int)kv->value.len : 1, kv->value.len > 0 ? kv->value.data : "-",
                 counted(kv->create), counted(kv->mod), kv->lease);
}

static void on_push(void *ctx, struct mu_engine_peer *peer, uint32_t watch, int64_t revision,
                    const struct mu_engine_change *changes, size_t count)
{
    (void)ctx;
    (void)peer;
    (void)watch;
    (void)revision;
    for (size_t i = 0; i < count; i++) {
        if (changes[i].deleted)
            (void)printf("delete %.*s %" PRId64 "\n", (int)changes[i].kv.key.len, changes[i].kv.key.data,
                         counted(changes[i].kv.mod));
        else
            print_kv("put", &changes[i].kv);
    }
}

struct scene {
    struct mu_budget budget;
    struct mu_engine *engine;
    struct mu_engine_peer peer;
    uint32_t last_id;
};

/* Words of a line; they live until the scene of one request is over. */
struct words {
    char line[LINE_BYTES];
    char *word[6];
};

static bool next_line(struct words *words)
{
    char *rest = words->line, *word;
    unsigned count = 0;

    memset(words->word, 0, sizeof words->word);
    if (fgets(words->line, sizeof words->line, stdin) == NULL)
        return false;
    while (count < 5 && (word = strsep(&rest, " \n")) != NULL)
        if (*word != '\0')
            words->word[count++] = word;
    return true;
}

static struct mu_slice text_of(const char *word)
{
    return word == NULL || strcmp(word, "-") == 0 ? mu_slice("", 0) : mu_slice_str(word);
}

static uint64_t number_of(const char *word)
{
    return word == NULL ? 0 : strtoull(word, NULL, 10);
}

static void print_done(const struct scene *s, enum mu_engine_code code, bool held)
{
    (void)printf("done %d %d %" PRId64 "\n", (int)code, held, counted(mu_engine_revision(s->engine)));
}

static struct mu_engine_compare read_compare(const struct words *words)
{
    enum mu_engine_compare_kind kind = strcmp(words->word[0], "absent") == 0   ? MU_ENGINE_IF_ABSENT
                                       : strcmp(words->word[0], "create") == 0 ? MU_ENGINE_IF_CREATE
                                                                               : MU_ENGINE_IF_MOD;
    uint64_t number = number_of(words->word[2]);

    return (struct mu_engine_compare){ kind, text_of(words->word[1]), number == 0 ? 0 : BASE + (int64_t)number };
}

static struct mu_engine_op read_op(const struct words *words)
{
    enum mu_engine_op_kind kind = strcmp(words->word[0], "put") == 0      ? MU_ENGINE_PUT
                                  : strcmp(words->word[0], "delete") == 0 ? MU_ENGINE_DELETE
                                                                          : MU_ENGINE_DELETE_PREFIX;

    return (struct mu_engine_op){ kind, text_of(words->word[1]), text_of(words->word[2]), number_of(words->word[3]) };
}

static void transact(struct scene *s, const struct words *words)
{
    static struct words lines[3 * OPS_MAX];
    struct mu_engine_compare compares[OPS_MAX];
    struct mu_engine_op ops[2][OPS_MAX];
    size_t counts[3] = { number_of(words->word[1]), number_of(words->word[2]), number_of(words->word[3]) }, line = 0;
    struct mu_engine_txn txn = { .id = ++s->last_id,
                                 .compares = compares,
                                 .then = ops[0],
                                 .otherwise = ops[1],
                                 .compares_count = counts[0],
                                 .then_count = counts[1],
                                 .otherwise_count = counts[2] };
    enum mu_engine_code code;
    bool held;

    for (unsigned part = 0; part < 3; part++) {
        for (size_t i = 0; i < counts[part] && i < OPS_MAX && next_line(&lines[line]); i++, line++) {
            if (part == 0)
                compares[i] = read_compare(&lines[line]);
            else
                ops[part - 1][i] = read_op(&lines[line]);
        }
    }
    code = mu_engine_txn(s->engine, &s->peer, &txn, &held);
    print_done(s, code, held);
}

static void look_up(struct scene *s, const struct words *words, bool prefix)
{
    struct mu_engine_found found;
    enum mu_engine_code code = mu_engine_range(s->engine, &s->peer, text_of(words->word[1]), prefix,
                                               (uint32_t)number_of(words->word[2]), &found);

    print_done(s, code, false);
    for (size_t i = 0; i < found.count; i++) {
        struct mu_engine_kv kv = mu_engine_kv(&found, i);

        print_kv("key", &kv);
    }
    mu_engine_found_done(s->engine, &found);
}

static void carry_out(struct scene *s, const struct words *words)
{
    const char *what = words->word[0];
    struct mu_engine_grant grant = { .lease = number_of(words->word[1]), .ttl_ms = 3600 * 1000 };

    if (strcmp(what, "grant") == 0)
        print_done(s, mu_engine_grant(s->engine, &s->peer, &grant, 0), false);
    else if (strcmp(what, "revoke") == 0)
        print_done(s, mu_engine_revoke(s->engine, &s->peer, grant.lease, mu_slice("", 0), NULL), false);
    else if (strcmp(what, "txn") == 0)
        transact(s, words);
    else
        look_up(s, words, strcmp(what, "prefix") == 0);
}

int main(void)
{
    struct scene s = { 0 };
    struct mu_engine_config config = { .budget = &s.budget, .revision = BASE, .push = on_push };
    struct mu_engine_found found;
    struct words words;

    s.engine = mu_engine_new(&config);
    mu_engine_peer_init(&s.peer);
    if (s.engine == NULL || mu_engine_hello(s.engine, &s.peer, mu_slice_str("job"), false) != MU_ENGINE_OK ||
        mu_engine_load(s.engine, &s.peer, 1, mu_slice("", 0), &found) != MU_ENGINE_OK)
        return 1;
    while (next_line(&words)) {
        if (words.word[0] != NULL)
            carry_out(&s, &words);
        mu_engine_flush(s.engine);
        (void)printf(".\n");
        (void)fflush(stdout);
    }
    mu_engine_leave(s.engine, &s.peer, false, 0);
    mu_engine_free(s.engine);
    return s.budget.used != 0;
}
