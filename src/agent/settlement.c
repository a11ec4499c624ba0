/* What a round that a worker's failure ended costs. The rule is in settlement.h. */
#include "agent/settlement.h"

#include "rdzv/round_keys.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { TOLD_MAX = MU_VANISHED_NAMED_MAX + MU_SETTLEMENT_RANKS_MAX };

/* Not longer than it can be read back; "?" if it is not UTF-8. */
static json_t *json_name(const char *name)
{
    json_t *json = json_string(name);

    return json != NULL ? json : json_string("?");
}

size_t mu_settlement_write(const struct mu_settlement *s, char text[static MU_SETTLEMENT_JSON_MAX])
{
    char tag[17];
    json_t *missing, *json;
    size_t len;

    if (!s->known)
        return 0;
    missing = json_array();
    for (size_t i = 0; i < s->missing.count && i < TOLD_MAX; i++) {
        const struct mu_vanished_member *member = &s->missing.members[i];

        (void)json_array_append_new(
            missing, i < MU_VANISHED_NAMED_MAX ? json_pack("[I, o]", (json_int_t)member->rank, json_name(member->name))
                                               : json_integer(member->rank));
    }
    (void)snprintf(tag, sizeof tag, "%016" PRIx64, s->tag);
    json = json_pack("{s:I, s:s, s:o, s:o}", "round", (json_int_t)s->round, "tag", tag, "failure",
                     json_name(s->failure), "missing", missing);
    if (json != NULL && s->loss[0] != '\0')
        (void)json_object_set_new(json, "loss", json_name(s->loss));
    len = json == NULL ? 0 : json_dumpb(json, text, MU_SETTLEMENT_JSON_MAX, JSON_COMPACT);
    json_decref(json);
    return len < MU_SETTLEMENT_JSON_MAX ? len : 0;
}

static void add_missing(struct mu_settlement *s, const json_t *missing)
{
    char unnamed[64];

    for (size_t i = 0; i < json_array_size(missing) && i < TOLD_MAX; i++) {
        const json_t *told = json_array_get(missing, i);
        const json_t *rank = json_is_array(told) ? json_array_get(told, 0) : told;
        const char *name = json_string_value(json_array_get(told, 1));

        if (!json_is_integer(rank) || json_integer_value(rank) < 0 || (json_is_array(told) && name == NULL))
            continue;
        (void)snprintf(unnamed, sizeof unnamed, "the node of group rank %" PRId64, (int64_t)json_integer_value(rank));
        mu_vanished_add(&s->missing, json_integer_value(rank), name != NULL ? name : unnamed, true, false);
    }
}

void mu_settlement_begin(struct mu_settlement *s, int64_t round, uint64_t tag)
{
    mu_vanished_done(&s->missing);
    *s = (struct mu_settlement){ .known = true, .round = round, .tag = tag };
}

void mu_settlement_copy(struct mu_settlement *to, const struct mu_settlement *from)
{
    struct mu_vanished missing = to->missing;

    mu_vanished_copy(&missing, &from->missing);
    *to = *from;
    to->missing = missing;
}

void mu_settlement_add(struct mu_settlement *s, const json_t *json)
{
    const json_t *round = json_object_get(json, "round");
    const char *failure = json_string_value(json_object_get(json, "failure"));
    const char *loss = json_string_value(json_object_get(json, "loss"));
    uint64_t tag;

    if (!json_is_integer(round) || json_integer_value(round) < (s->known ? s->round : 0) ||
        !mu_round_read_tag(json_string_value(json_object_get(json, "tag")), &tag))
        return;
    if (!s->known || json_integer_value(round) > s->round)
        mu_settlement_begin(s, json_integer_value(round), tag);
    else if (tag != s->tag)
        return;
    if (s->missing.count == 0) /* all members of a round miss the same ones */
        add_missing(s, json_object_get(json, "missing"));
    if (s->failure[0] == '\0' && failure != NULL)
        mu_line_copy(s->failure, sizeof s->failure, mu_slice_str(failure));
    if (s->loss[0] == '\0' && loss != NULL)
        mu_line_copy(s->loss, sizeof s->loss, mu_slice_str(loss));
}

bool mu_settlement_is_free(const struct mu_settlement *s)
{
    return s->loss[0] != '\0' || mu_vanished_any_lost(&s->missing);
}

void mu_settlement_say(const struct mu_settlement *s, int64_t nodes, char text[static MU_SETTLEMENT_TEXT_MAX])
{
    char who[MU_SETTLEMENT_TEXT_MAX / 2];

    if (mu_vanished_any_lost(&s->missing))
        mu_vanished_say(&s->missing, who, sizeof who);
    else
        (void)snprintf(who, sizeof who, "%s", s->loss);
    (void)snprintf(text, MU_SETTLEMENT_TEXT_MAX,
                   "%s; %s is a consequence; restarting with %" PRId64 " node%s, no restart charged", who,
                   s->failure[0] != '\0' ? s->failure : "the failure of a worker", nodes, nodes == 1 ? "" : "s");
}
