/* How a job has ended, as JSON. See verdict.h. */
#include "agent/verdict.h"

#include "agent/vanished.h"
#include "rdzv/round_keys.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

/* ---- The verdict ---- */

/* Text for JSON: as much of it as fits and is UTF-8. */
static json_t *json_text(const char *text)
{
    json_t *json = json_string(text);

    return json != NULL ? json : json_string("(not UTF-8)");
}

int mu_verdict_write(const struct mu_verdict *verdict, char text[static MU_VERDICT_TEXT_MAX])
{
    char tag[17];
    json_t *json;
    size_t len;

    (void)snprintf(tag, sizeof tag, "%016" PRIx64, verdict->tag);
    json = json_pack("{s:s, s:I, s:s, s:o, s:I, s:o}", "verdict", verdict->succeeded ? "succeeded" : "failed", "round",
                     (json_int_t)verdict->round, "tag", tag, "node", json_text(verdict->node), "rank",
                     (json_int_t)verdict->rank, "cause", json_text(verdict->cause));
    len = json == NULL ? 0 : json_dumpb(json, text, MU_VERDICT_TEXT_MAX, JSON_ENSURE_ASCII);
    json_decref(json);
    return len == 0 || len >= MU_VERDICT_TEXT_MAX ? MUSTER_ENOMEM : (int)len;
}

bool mu_verdict_read(struct mu_slice text, struct mu_verdict *ret_verdict)
{
    json_t *json = text.len > MU_VERDICT_TEXT_MAX ? NULL : json_loadb(text.data, text.len, 0, NULL);
    const char *verdict = json_string_value(json_object_get(json, "verdict"));
    const char *tag_text = json_string_value(json_object_get(json, "tag"));
    const char *node = json_string_value(json_object_get(json, "node"));
    const char *cause = json_string_value(json_object_get(json, "cause"));
    const json_t *round = json_object_get(json, "round"), *rank = json_object_get(json, "rank");
    uint64_t tag = 0;
    bool succeeded = verdict != NULL && strcmp(verdict, "succeeded") == 0;
    bool good = (succeeded || (verdict != NULL && strcmp(verdict, "failed") == 0)) && json_is_integer(round) &&
                json_is_integer(rank) && mu_round_read_tag(tag_text, &tag) && node != NULL && cause != NULL;

    if (good) {
        *ret_verdict = (struct mu_verdict){
            .succeeded = succeeded, .round = json_integer_value(round), .tag = tag, .rank = json_integer_value(rank)
        };
        mu_line_copy(ret_verdict->node, sizeof ret_verdict->node, mu_slice_str(node));
        mu_line_copy(ret_verdict->cause, sizeof ret_verdict->cause, mu_slice_str(cause));
    }
    json_decref(json);
    return good;
}

bool mu_verdict_is_credible(const struct mu_verdict *verdict, const struct mu_verdict_reader *reader)
{
    if (verdict->rank < 0 || verdict->round < reader->round)
        return false;
    if (verdict->round > reader->round)
        return reader->is_over;
    return verdict->tag == reader->tag && verdict->rank < reader->world_size;
}
