/* How a job has ended, as JSON. See verdict.h. */
#include "agent/verdict.h"

#include "agent/vanished.h"

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
    json_t *json =
        json_pack("{s:s, s:o, s:I, s:o}", "verdict", verdict->succeeded ? "succeeded" : "failed", "node",
                  json_text(verdict->node), "rank", (json_int_t)verdict->rank, "cause", json_text(verdict->cause));
    size_t len = json == NULL ? 0 : json_dumpb(json, text, MU_VERDICT_TEXT_MAX, JSON_ENSURE_ASCII);

    json_decref(json);
    return len == 0 || len >= MU_VERDICT_TEXT_MAX ? MUSTER_ENOMEM : (int)len;
}

int mu_verdict_read(struct mu_slice text, struct mu_verdict *ret_verdict, struct muster_error *reterr)
{
    json_t *json = text.len > MU_VERDICT_TEXT_MAX ? NULL : json_loadb(text.data, text.len, 0, NULL);
    const char *verdict = json_string_value(json_object_get(json, "verdict"));
    const char *node = json_string_value(json_object_get(json, "node"));
    const char *cause = json_string_value(json_object_get(json, "cause"));
    const json_t *rank = json_object_get(json, "rank");
    bool succeeded = verdict != NULL && strcmp(verdict, "succeeded") == 0;
    bool good = succeeded || (verdict != NULL && strcmp(verdict, "failed") == 0);

    if (good) {
        *ret_verdict = (struct mu_verdict){ .succeeded = succeeded, .rank = -1 };
        if (json_is_integer(rank))
            ret_verdict->rank = json_integer_value(rank);
        mu_line_copy(ret_verdict->node, sizeof ret_verdict->node, mu_slice_str(node == NULL ? "" : node));
        mu_line_copy(ret_verdict->cause, sizeof ret_verdict->cause, mu_slice_str(cause == NULL ? "" : cause));
    }
    json_decref(json);
    return good ? 0 : mu_fail(reterr, MUSTER_EPROTOCOL, "this is no verdict (%zu bytes)", text.len);
}
